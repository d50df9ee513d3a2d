// The queries of a block: where they lie, and which keys they may look at.
#pragma once
#include "product.h"

namespace attendax {
namespace ATTENDAX_UNIT {
namespace {

INLINE int64_t offset_of(const Problem& p, const View& v, int64_t batch, int64_t head, int64_t row) {
  int64_t at = head * v.head + row * v.row;
  for (int i = p.lead_rank - 1; i > 0; --i) {  // to divide takes as long as the rest of a short row
    at += batch % p.lead_size[i] * v.lead[i];
    batch /= p.lead_size[i];
  }
  return at + batch * v.lead[0];
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
    int64_t left = op.lefts.data ? integer_at(p, op.lefts, batch, head, query, 0) : op.left;
    int64_t right = op.rights.data ? integer_at(p, op.rights, batch, head, query, 0) : op.right;
    int64_t place = i + offset - p.first_key;
    if (op.has_left) seen.first = most(0, place - left);
    if (op.has_right) seen.last = least(p.keys, place + right + 1);
  } else {
    int64_t length = integer_at(p, op.one, batch, head, query, 0);
    if (op.kind == MaskKind::key_lengths) seen.last = least(p.keys, length - p.first_key);
    if (op.kind == MaskKind::query_lengths && i >= length) seen.last = 0;
  }
  if (seen.first >= seen.last) seen.first = seen.last = 0;
  return seen;
}

// Keys that some of the rows see: [begin, end); that every one sees: [all_begin, all_end).
struct Span {
  int64_t begin = INT64_MAX, end = 0, all_begin = 0, all_end = INT64_MAX;
  void add(int64_t first, int64_t last) {
    if (first < last) begin = least(begin, first);
    end = most(end, last);
    all_begin = most(all_begin, first);
    all_end = least(all_end, last);
  }
  // Whether all rows see the same keys.
  bool alike() const { return !end || (begin == all_begin && end == all_end); }
};

bool is_interval(const MaskOp& op) {
  return op.kind == MaskKind::window || op.kind == MaskKind::key_lengths || op.kind == MaskKind::query_lengths;
}

// Rows beyond `rows` repeat the last, up to whole vectors.
struct Block {
  int64_t batch, rows, padded;
  Span program[kMaxMaskOps];                            // of the intervals in the mask program
  int64_t head[kBlockRows], query[kBlockRows];          // which head and query a row is
  alignas(64) Int first[kBlockRows], last[kBlockRows];  // what all intervals allow

  Block(const Problem& p, int64_t batch, int64_t group, int64_t run, int64_t number) : batch(batch) {
    int64_t vectors = (p.run_rows() + W - 1) / W;  // blocks of nearly equal numbers of vectors
    int64_t from = vectors * number / p.blocks_of_run() * W, to = vectors * (number + 1) / p.blocks_of_run() * W;
    rows = least(to, p.run_rows()) - from;
    padded = rounded_up(rows, W);
    int64_t next_head = group * p.repeat() + run + from / p.queries, next_query = from % p.queries;
    for (int64_t r = 0; r < padded; ++r) {
      head[r] = r < rows ? next_head : head[rows - 1];
      query[r] = r < rows ? next_query : query[rows - 1];
      if (++next_query == p.queries) {
        next_query = 0;
        ++next_head;
      }
      Interval seen = {0, p.keys};
      for (int k = 0; k < p.intervals; ++k) {
        Interval one = interval_of(p, p.interval[k], batch, head[r], query[r]);
        seen.first = most(seen.first, one.first);
        seen.last = least(seen.last, one.last);
      }
      bool none = seen.first >= seen.last;
      first[r] = none ? 0 : Int(seen.first);
      last[r] = none ? 0 : Int(seen.last);
      for (int k = 0; k < p.mask_ops; ++k) {
        if (!is_interval(p.mask[k])) continue;
        Interval one = interval_of(p, p.mask[k], batch, head[r], query[r]);
        program[k].add(one.first, one.last);
      }
    }
  }

  // Of the rows [from, to), by all intervals.
  Span span(int64_t from, int64_t to) const {
    Span found;
    for (int64_t r = from; r < to; ++r) found.add(first[r], last[r]);
    return found;
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

// The truth values of the blocks of keys for a row.
INLINE const uint8_t* blocks_of_row(const Problem& p, const MaskOp& op, const Block& block, int64_t r) {
  int64_t number = (block.query[r] + p.first_query) / op.left;
  return static_cast<const uint8_t*>(op.one.data) + offset_of(p, op.one, block.batch, block.head[r], number);
}
INLINE int64_t block_of_key(const Problem& p, const MaskOp& op, int64_t key) { return (key + p.first_key) / op.right; }

void allow_blocks(const Problem& p, const MaskOp& op, const Block& block, int64_t key, int64_t keys, Allowed& to) {
  const uint8_t* from[kBlockRows];
  for (int64_t r = 0; r < kBlockRows; ++r) from[r] = blocks_of_row(p, op, block, least(r, block.padded - 1));
  for (int64_t k = 0; k < keys; ++k) {
    int64_t at = block_of_key(p, op, key + k) * op.one.column;
    for (int64_t r = 0; r < kBlockRows; ++r) to.at[k][r] = from[r][at];
  }
}

// Whether a mask may allow some pair of a tile, and whether it allows every one: told without looking at each pair.
struct Bounds {
  bool some = true, every = false;
};

Bounds bounds_of_blocks(const Problem& p, const MaskOp& op, const Block& block, int64_t key, int64_t keys) {
  Bounds found = {false, true};
  const uint8_t* before = nullptr;
  for (int64_t r = 0; r < block.rows; ++r) {
    const uint8_t* row = blocks_of_row(p, op, block, r);
    if (row == before) continue;
    before = row;
    for (int64_t b = block_of_key(p, op, key); b <= block_of_key(p, op, key + keys - 1); ++b) {
      bool here = row[b * op.one.column];
      found = {found.some || here, found.every && here};
    }
  }
  return found;
}

Bounds bounds_of_program(const Problem& p, const Block& block, int64_t key, int64_t keys) {
  Bounds stack[kMaxMaskDepth];
  int top = -1;
  for (int n = 0; n < p.mask_ops; ++n) {
    const MaskOp& op = p.mask[n];
    if (op.kind == MaskKind::conjunction || op.kind == MaskKind::disjunction) {
      Bounds one = stack[top - 1], other = stack[top];
      bool both = op.kind == MaskKind::conjunction;
      stack[--top] = both ? Bounds{one.some && other.some, one.every && other.every}
                          : Bounds{one.some || other.some, one.every || other.every};
    } else if (op.kind == MaskKind::negation) {
      stack[top] = {!stack[top].every, !stack[top].some};
    } else if (op.kind == MaskKind::blocks) {
      stack[++top] = bounds_of_blocks(p, op, block, key, keys);
    } else if (is_interval(op)) {
      const Span& span = block.program[n];
      stack[++top] = {span.begin < key + keys && span.end > key, span.all_begin <= key && span.all_end >= key + keys};
    } else {
      stack[++top] = Bounds{};
    }
  }
  return stack[0];
}

// Runs the program for keys [key, key + keys). `stack` has kMaxMaskDepth tiles; the result is the first.
void allow_pairs(const Problem& p, const Block& block, int64_t key, int64_t keys, Allowed* stack) {
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
      case MaskKind::blocks:
        allow_blocks(p, op, block, key, keys, stack[++top]);
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

// What the program allows of keys [key, key + keys); where that is some of the pairs, they are in stack[0].
Seen allow(const Problem& p, const Block& block, int64_t key, int64_t keys, Allowed* stack) {
  Bounds bounds = bounds_of_program(p, block, key, keys);
  if (!bounds.some) return Seen::none;
  if (bounds.every) return Seen::every;
  allow_pairs(p, block, key, keys, stack);
  return seen_in(stack[0], 0, keys, 0, block.padded);
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
