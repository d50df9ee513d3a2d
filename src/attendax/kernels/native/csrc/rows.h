// The queries of a block: where they lie, and which keys they may look at.
#pragma once
#include "product.h"

namespace attendax {
namespace ATTENDAX_UNIT {
namespace {

INLINE int64_t offset_of(const Problem& p, const View& v, int64_t batch, int64_t head, int64_t row) {
  int64_t at = head * v.head + row * v.row;
  for (int i = p.lead_rank - 1; i >= 0; --i) {
    at += batch % p.lead_size[i] * v.lead[i];
    batch /= p.lead_size[i];
  }
  return at;
}

INLINE int32_t integer_at(const Problem& p, const View& v, int64_t batch, int64_t head, int64_t row, int64_t column) {
  return static_cast<const int32_t*>(v.data)[offset_of(p, v, batch, head, row) + column * v.column];
}

INLINE Real real_at(const Problem& p, const View& v, int64_t batch, int64_t head, int64_t row) {
  return number_at(v.data, v.type, offset_of(p, v, batch, head, row));
}

// Keys that a query may look at, by one op that allows an interval: [first, last).
struct Interval {
  int64_t first, last;
};

Interval interval_of(const Problem& p, const MaskOp& op, int64_t batch, int64_t head, int64_t query) {
  Interval seen = {0, p.keys};
  int64_t i = query + p.first_query;
  if (op.kind == MaskKind::window) {
    int64_t offset = op.one.data ? integer_at(p, op.one, batch, head, query, 0) : op.offset;
    int64_t place = i + offset - p.first_key;
    if (op.has_left) seen.first = most(0, place - op.left);
    if (op.has_right) seen.last = least(p.keys, place + op.right + 1);
  } else {
    int64_t length = integer_at(p, op.one, batch, head, query, 0);
    if (op.kind == MaskKind::key_lengths) seen.last = least(p.keys, length - p.first_key);
    if (op.kind == MaskKind::query_lengths && i >= length) seen.last = 0;
  }
  if (seen.first >= seen.last) seen.first = seen.last = 0;
  return seen;
}

// Rows beyond `rows` repeat the last, up to whole vectors.
struct Block {
  int64_t batch, rows, padded;
  int64_t head[kBlockRows], query[kBlockRows];          // which head and query a row is
  alignas(64) Int first[kBlockRows], last[kBlockRows];  // what all intervals allow

  Block(const Problem& p, int64_t batch, int64_t group, int64_t run, int64_t number) : batch(batch) {
    int64_t vectors = (p.run_rows() + W - 1) / W;  // blocks of nearly equal numbers of vectors
    int64_t from = vectors * number / p.blocks_of_run() * W, to = vectors * (number + 1) / p.blocks_of_run() * W;
    rows = least(to, p.run_rows()) - from;
    padded = rounded_up(rows, W);
    for (int64_t r = 0; r < padded; ++r) {
      int64_t row = from + least(r, rows - 1);
      head[r] = group * p.repeat() + run + row / p.queries;
      query[r] = row % p.queries;
      Interval seen = {0, p.keys};
      for (int k = 0; k < p.intervals; ++k) {
        Interval one = interval_of(p, p.interval[k], batch, head[r], query[r]);
        seen.first = most(seen.first, one.first);
        seen.last = least(seen.last, one.last);
      }
      bool none = seen.first >= seen.last;
      first[r] = none ? 0 : Int(seen.first);
      last[r] = none ? 0 : Int(seen.last);
    }
  }
};

// Keys that some row of [from, to) sees: [begin, end); that every one sees: [all_begin, all_end).
struct Span {
  int64_t begin = INT64_MAX, end = 0, all_begin = 0, all_end = INT64_MAX;
  Span() = default;
  Span(const Block& block, int64_t from, int64_t to) {
    for (int64_t r = from; r < to; ++r) {
      if (block.first[r] < block.last[r]) begin = least(begin, block.first[r]);
      end = most(end, block.last[r]);
      all_begin = most(all_begin, block.first[r]);
      all_end = least(all_end, block.last[r]);
    }
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// The mask program of a tile: a byte for each key and row, not 0 where allowed, keys one after the other

struct Allowed {
  uint8_t at[kTileKeys][kBlockRows];
  uint8_t* bytes() { return reinterpret_cast<uint8_t*>(this); }
};

void allow_interval(const Problem& p, const MaskOp& op, const Block& block, int64_t key, int64_t keys, Allowed& to) {
  alignas(64) int32_t first[kBlockRows] = {}, last[kBlockRows] = {};
  for (int64_t r = 0; r < block.padded; ++r) {
    Interval seen = interval_of(p, op, block.batch, block.head[r], block.query[r]);
    first[r] = int32_t(most(seen.first - key, 0));
    last[r] = int32_t(least(seen.last - key, kTileKeys));
  }
  for (int32_t k = 0; k < keys; ++k)
    for (int64_t r = 0; r < kBlockRows; ++r) to.at[k][r] = uint8_t((k >= first[r]) & (k < last[r]));
}

void allow_segments(const Problem& p, const MaskOp& op, const Block& block, int64_t key, int64_t keys, Allowed& to) {
  alignas(64) int32_t ids[kBlockRows] = {};
  bool one_head = op.other.head == 0;
  for (int64_t r = 0; r < block.padded; ++r)
    ids[r] = integer_at(p, op.one, block.batch, block.head[r], block.query[r], 0);
  for (int64_t k = 0; k < keys; ++k) {
    int32_t id = integer_at(p, op.other, block.batch, block.head[0], 0, key + k);
    for (int64_t r = 0; r < kBlockRows; ++r) to.at[k][r] = uint8_t(ids[r] == id);
    for (int64_t r = 0; r < block.padded && !one_head; ++r)
      to.at[k][r] = uint8_t(ids[r] == integer_at(p, op.other, block.batch, block.head[r], 0, key + k));
  }
}

void allow_dense(const Problem& p, const MaskOp& op, const Block& block, int64_t key, int64_t keys, Allowed& to) {
  const uint8_t* from[kBlockRows];
  int64_t step = op.one.column;
  for (int64_t r = 0; r < kBlockRows; ++r) {
    int64_t row = least(r, block.padded - 1);
    from[r] = static_cast<const uint8_t*>(op.one.data) +
              offset_of(p, op.one, block.batch, block.head[row], block.query[row]) + key * step;
  }
  int64_t whole = step == 1 ? keys / 16 * 16 : 0;
  for (int64_t k = 0; k < whole; k += 16)
    for (int64_t r = 0; r < kBlockRows; r += 16) {
      Bytes16 x[16];
      for (int i = 0; i < 16; ++i) x[i] = *reinterpret_cast<const Bytes16*>(from[r + i] + k);
      transpose_bytes(x);
      for (int i = 0; i < 16; ++i) memcpy(&to.at[k + i][r], &x[i], 16);
    }
  for (int64_t k = whole; k < keys; ++k)
    for (int64_t r = 0; r < kBlockRows; ++r) to.at[k][r] = from[r][k * step];
}

// Runs the program for keys [key, key + keys). `stack` has kMaxMaskDepth tiles; the result is the first.
void allow(const Problem& p, const Block& block, int64_t key, int64_t keys, Allowed* stack) {
  int top = -1;
  for (int n = 0; n < p.mask_ops; ++n) {
    const MaskOp& op = p.mask[n];
    switch (op.kind) {
      case MaskKind::conjunction:
      case MaskKind::disjunction: {
        uint8_t *one = stack[top - 1].bytes(), *other = stack[top].bytes();
        bool both = op.kind == MaskKind::conjunction;
        for (int64_t i = 0; i < keys * kBlockRows; ++i)
          one[i] = both ? uint8_t((one[i] != 0) & (other[i] != 0)) : uint8_t(one[i] | other[i]);
        --top;
        break;
      }
      case MaskKind::negation:
        for (int64_t i = 0; i < keys * kBlockRows; ++i) stack[top].bytes()[i] = uint8_t(stack[top].bytes()[i] == 0);
        break;
      case MaskKind::segments:
        allow_segments(p, op, block, key, keys, stack[++top]);
        break;
      case MaskKind::dense:
        allow_dense(p, op, block, key, keys, stack[++top]);
        break;
      default:
        allow_interval(p, op, block, key, keys, stack[++top]);
    }
  }
}

// Whether the program allows no pair of these keys and rows, some, or every one.
enum class Seen { none, some, every };

// Rows [row, row + rows), a multiple of W.
Seen seen_in(const Allowed& allowed, int64_t first, int64_t last, int64_t row, int64_t rows) {
  typedef uint8_t Bytes __attribute__((vector_size(W), aligned(1), may_alias));
  Bytes any{}, hidden{};
  for (int64_t k = first; k < last; ++k)
    for (int64_t r = row; r < row + rows; r += W) {
      Bytes x = *reinterpret_cast<const Bytes*>(&allowed.at[k][r]);
      any |= x;
      hidden |= (Bytes)(x == 0);
    }
  bool some = false, every = true;
  for (int i = 0; i < W; ++i) {
    some |= any[i] != 0;
    every &= hidden[i] == 0;
  }
  return every ? Seen::every : some ? Seen::some : Seen::none;
}

// ---------------------------------------------------------------------------------------------------------------------
// Keys, values and queries as rows of Real

// Rows [key, key + keys) of a head. Where they are Real already, and nothing is to be cleaned, as they lie; else in
// `copy`. Where `clean`, a position whose key or value is not finite is 0 in both, and noted in `bad` (L6).
struct KeysAndValues {
  const Real *key, *value;
  int64_t key_step, value_step;  // from row to row
};

KeysAndValues keys_and_values(const Problem& p, int64_t batch, int64_t group, int64_t key, int64_t keys, bool clean,
                              Real* key_copy, Real* value_copy, uint8_t* bad) {
  KeysAndValues found;
  int64_t at_key = offset_of(p, p.key, batch, group, key), at_value = offset_of(p, p.value, batch, group, key);
  if (p.key.type == kOwnType && !clean) {
    found = {static_cast<const Real*>(p.key.data) + at_key, static_cast<const Real*>(p.value.data) + at_value,
             p.key.row, p.value.row};
    return found;
  }
  int64_t D = p.width, V = p.value_width;
  for (int64_t k = 0; k < keys; ++k) {
    widen_row(p.key.data, p.key.type, at_key + k * p.key.row, 1, key_copy + k * D, D);
    widen_row(p.value.data, p.value.type, at_value + k * p.value.row, 1, value_copy + k * V, V);
    if (clean && !(finite_row(key_copy + k * D, D) && finite_row(value_copy + k * V, V))) {
      bad[k] = 1;
      memset(key_copy + k * D, 0, D * sizeof(Real));
      memset(value_copy + k * V, 0, V * sizeof(Real));
    }
  }
  return {key_copy, value_copy, D, V};
}

}  // namespace
}  // namespace ATTENDAX_UNIT
}  // namespace attendax
