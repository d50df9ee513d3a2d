// The forward of one block of queries: average, row maximum, row sum, lse.
//
// Keys come in tiles that begin at multiples of kTileKeys, and in chunks that begin at multiples of kChunkKeys. A row
// adds up within a chunk below the chunk's own maximum; chunks are merged in their order. Where a row sees nothing, a
// tile or a chunk changes none of its bits: exp(0) is 1, hidden weights are 0. So its bits depend on what it sees
// alone (L15).
#pragma once
#include "scores.h"

namespace attendax {
namespace ATTENDAX_UNIT {
namespace {

// Sums of a block over some keys: `top` is the maximum, `sum` that of exp(s - top), `out` the weighted values,
// transposed.
struct Partial {
  Real *top, *sum, *out;

  Partial(Arena& from, int64_t V)
      : top(from.take<Real>(kBlockRows)), sum(from.take<Real>(kBlockRows)), out(from.take<Real>(V * kLd)) {}
  void clear(int64_t V, int64_t padded) {
    for (int64_t r = 0; r < padded; ++r) {
      top[r] = kLowest;
      sum[r] = 0;
    }
    for (int64_t v = 0; v < V; ++v) memset(out + v * kLd, 0, padded * sizeof(Real));
  }
};

INLINE F faded(F from, F to) { return exp_of(from - to); }

// `all` becomes the union of itself and `next`. With an empty part it is the other, to the bit.
void merge(Partial& all, const Partial& next, int64_t V, int64_t padded) {
  for (int64_t row = 0; row < padded; row += W) {
    F one = load(all.top + row), other = load(next.top + row), top = larger(one, other);
    F f = faded(one, top), g = faded(other, top);
    store(all.top + row, top);
    store(all.sum + row, fma(load(all.sum + row), f, load(next.sum + row) * g));
    for (int64_t v = 0; v < V; ++v) {
      Real* to = all.out + v * kLd + row;
      store(to, fma(load(to), f, load(next.out + v * kLd + row) * g));
    }
  }
}

// exp(s - top) in place of scores; `sum` is that of keys [key, key + keys), in pieces.
template <int N>
INLINE void exponentials(Real* scores, int64_t ld, int64_t key, int64_t keys, const F (&top)[N], F (&sum)[N]) {
  F piece[N];
  for (int j = 0; j < N; ++j) sum[j] = F{};
  int64_t k = 0;
  for (int64_t end = kPiece - key % kPiece; k < keys; end += kPiece) {
    for (int j = 0; j < N; ++j) piece[j] = F{};
    for (; k < least(keys, end); ++k)
      for (int j = 0; j < N; ++j) {
        Real* at = scores + k * ld + j * W;
        F w = exp_of(load(at) - top[j]);
        piece[j] += w;
        store(at, w);
      }
    for (int j = 0; j < N; ++j) sum[j] += piece[j];
  }
}

// What one block has at hand while its tiles go by.
struct Forward {
  const Problem& p;
  const Block& block;
  const Real* queries;  // packed: (D, rows)
  Real* scores;         // (keys, lanes of a panel)
  Real* kept;           // the same, for dropout
  const Real* after;    // of each row, or null (Factors)

  // One tile of keys [key, key + keys) for N vectors of queries from `row` on.
  template <int N>
  void panel(int64_t row, const KeysAndValues& from, int64_t key, int64_t keys, const Allowed* allowed,
             Partial& part) const {
    Panel<N> rows{p, block, row, after};
    Span span = block.span(row, row + N * W);
    int64_t begin = most(key, span.begin), end = least(key + keys, span.end), skip = begin - key;
    if (begin >= end) return;
    if (allowed) {
      Seen seen = seen_in(*allowed, skip, end - key, row, N * W);
      if (seen == Seen::none) return;
      if (seen == Seen::every) allowed = nullptr;
    }
    bool masked = begin < span.all_begin || end > span.all_end;
    F top[N], sum[N], fade[N];
    for (int j = 0; j < N; ++j) top[j] = load(part.top + row + j * W);
    rows.scores(from.key + skip * from.key_step, from.key_step, queries, begin, end - begin, masked, allowed, skip,
                scores, kPanel, top, nullptr);
    for (int j = 0; j < N; ++j) {
      fade[j] = faded(load(part.top + row + j * W), top[j]);
      store(part.top + row + j * W, top[j]);
    }
    exponentials<N>(scores, kPanel, begin, end - begin, top, sum);
    for (int j = 0; j < N; ++j) {
      Real* at = part.sum + row + j * W;
      store(at, fma(load(at), fade[j], sum[j]));
    }
    if (p.drops) {
      rows.dropout(begin, end - begin, kept, kPanel);
      for (int64_t k = 0; k < end - begin; ++k)
        for (int j = 0; j < N; ++j) {
          Real* at = scores + k * kPanel + j * W;
          store(at, load(at) * load(kept + k * kPanel + j * W));
        }
    }
    add_product<N, false, true>(p.value_width, end - begin, from.value + skip * from.value_step, from.value_step,
                                scores, kPanel, part.out + row, kLd, fade, begin);
  }
};

// Few queries that see the same keys, as in decoding: lanes are keys, then the width of the values. The same operations
// in the same order as in a panel, so the same bits; but each key and value is read once, as memory has it.
constexpr int kFew = 4;                // rows that go by at once
constexpr int kMostFew = 2 * kFew;     // with more, a panel has the better use of its lanes
constexpr int kSums = kRegisters / 4;  // vectors of sums that stay in registers

struct Few {
  const Problem& p;
  const Real* queries;  // scaled: (rows, width)
  Real *scores, *out;   // (rows, keys of a tile); (rows, value width)

  // Memory bounds this path, and the processor does not foresee the step from keys to values and back.
  INLINE void fetch(const Real* row, int64_t width) const {
    for (int64_t d = 0; d < width; d += 64 / int64_t(sizeof(Real))) __builtin_prefetch(row + d);
  }

  template <int R, int N>
  INLINE void add_values(const KeysAndValues& from, int64_t v, int64_t key, int64_t keys, const Real* weights,
                         const F (&fade)[R], Real* to, const Real* next, int64_t next_width) const {
    F acc[R][N], piece[R][N];
    zero(acc);
    zero(piece);
    for (int64_t k = 0; k < keys; ++k) {
      fetch(next + k * from.key_step, next_width);
      F x[N];
      for (int j = 0; j < N; ++j) x[j] = load(from.value + k * from.value_step + v + j * W);
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < N; ++j) piece[r][j] = fma(weights[r * kTileKeys + k], x[j], piece[r][j]);
      if (!ends_piece(key + k) && k + 1 < keys) continue;
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < N; ++j) acc[r][j] += piece[r][j];
      zero(piece);
    }
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < N; ++j) {
        Real* at = to + r * p.value_width + v + j * W;
        store(at, fma(fade[r], load(at), acc[r][j]));
      }
  }

  // Keys [0, keys) of `from` for rows [row, row + R): all of them see all.
  template <int R>
  NOINLINE void rows(int64_t row, const KeysAndValues& from, int64_t key, int64_t keys, Partial& part) const {
    const Real* query = queries + row * p.width;
    Real *weights = scores + row * kTileKeys, *top = part.top + row, *sums = part.sum + row;
    F highest[R], fade[R];
    for (int r = 0; r < R; ++r) highest[r] = all(kLowest);
    const int64_t in_piece = piece_of(p.width) - 1;
    for (int64_t k = 0; k < keys; k += W) {
      F total[R] = {}, sum[R] = {}, piece[R] = {};
      const Real* lines[W];
      for (int i = 0; i < W; ++i) {
        int64_t line = least(k + i, keys - 1);
        lines[i] = from.key + line * from.key_step;
        fetch(from.value + line * from.value_step, row ? 0 : p.value_width);
      }
      for (int64_t d = 0; d < p.width; d += W) {
        F x[W];
        for (int i = 0; i < W; ++i) x[i] = load(lines[i] + d);
        transpose(x);
        for (int i = 0; i < W; ++i)
          for (int r = 0; r < R; ++r) {
            piece[r] = fma(query[r * p.width + d + i], x[i], piece[r]);
            if ((i + 1) % least(W, kPiece / 2)) continue;  // known when it is compiled
            if ((d + i + 1) & in_piece) continue;
            sum[r] += piece[r];
            piece[r] = F{};
          }
        if ((d + W) % kFar) continue;
        for (int r = 0; r < R; ++r) {
          total[r] += sum[r];
          sum[r] = F{};
        }
      }
      for (int r = 0; r < R; ++r) {
        F score = nan_unless_finite(total[r] + (sum[r] + piece[r]));
        highest[r] = larger(score, highest[r]);
        store(weights + r * kTileKeys + k, score);
      }
    }
    Real added[R] = {}, piece[R] = {};
    for (int r = 0; r < R; ++r) {
      Real before = top[r], *score = weights + r * kTileKeys;
      for (int j = 0; j < W; ++j) top[r] = highest[r][j] > top[r] ? highest[r][j] : top[r];
      fade[r] = faded(all(before), all(top[r]));
      for (int64_t k = 0; k < keys; k += W) store(score + k, exp_of(load(score + k) - all(top[r])));
    }
    for (int64_t k = 0; k < keys; ++k)
      for (int r = 0; r < R; ++r) {
        piece[r] += weights[r * kTileKeys + k];
        if (!ends_piece(key + k) && k + 1 < keys) continue;
        added[r] += piece[r];
        piece[r] = 0;
      }
    for (int r = 0; r < R; ++r) sums[r] = fma(all(sums[r]), fade[r], all(added[r]))[0];
    constexpr int N = R == 1 ? 8 : 2 * kSums / R;
    const Real* next = from.key + keys * from.key_step;
    Real* to = out + row * p.value_width;
    int64_t v = 0, width = row ? 0 : p.width;
    for (; v + N * W <= p.value_width; v += N * W, width = 0)
      add_values<R, N>(from, v, key, keys, weights, fade, to, next, width);
    for (; v < p.value_width; v += W, width = 0) add_values<R, 1>(from, v, key, keys, weights, fade, to, next, width);
  }

  void tile(int64_t count, const KeysAndValues& from, int64_t key, int64_t keys, Partial& part) const {
    int64_t row = 0;
    for (; row + kFew <= count; row += kFew) rows<kFew>(row, from, key, keys, part);
    for (; row + 2 <= count; row += 2) rows<2>(row, from, key, keys, part);
    if (row < count) rows<1>(row, from, key, keys, part);
  }
};

// Rows that are not finite, and those that see a position that is not (L6).
void note_spoiled(const Problem& p, const Block& block, int64_t key, int64_t keys, const uint8_t* bad,
                  const Allowed* allowed, uint8_t* spoiled) {
  for (int64_t r = 0; r < block.rows; ++r)
    for (int64_t k = most(0, block.first[r] - key); k < least(keys, block.last[r] - key); ++k) {
      if (!bad[k] || (allowed && !allowed->at[k][r])) continue;
      Real bias = 0;
      if (p.bias.data)
        bias = number_at(p.bias.data, p.bias.type,
                         offset_of(p, p.bias, block.batch, block.head[r], block.query[r]) + (key + k) * p.bias.column);
      spoiled[r] |= bias != -kInfinity;
    }
}

// Writes the results of the rows of a block.
void write_results(const Problem& p, const Block& block, const Partial& part, const uint8_t* spoiled) {
  int64_t V = p.value_width;
  alignas(64) Real inverse[kBlockRows];
  Real* to[kBlockRows];
  for (int64_t r = 0; r < block.padded; ++r) {
    Real sum = part.sum[r];
    inverse[r] = sum == 0 ? Real(0) : Real(1) / sum;
    if (r >= block.rows) continue;
    int64_t line = (block.batch * p.heads + block.head[r]) * p.queries + block.query[r];
    Real top = sum == 0 ? -kInfinity : part.top[r];
    if ((spoiled[r] && sum != 0) || !(sum - sum == 0)) inverse[r] = top = sum = kNaN;  // not where it sees nothing
    static_cast<Real*>(p.row_max)[line] = top;
    static_cast<Real*>(p.row_sum)[line] = sum;
    static_cast<Real*>(p.lse)[line] = sum == 0 ? -kInfinity : Real(double(top) + log(double(sum)));
    to[r] = static_cast<Real*>(p.out) + line * V;
  }
  unpack_transposed<false>(part.out, block.rows, V, inverse, to);
  for (int64_t r = 0; r < block.rows; ++r)
    for (int64_t v = 0; v < V && inverse[r] != inverse[r]; ++v) to[r][v] = kNaN;
}

bool all_finite(const Partial& part, int64_t V, int64_t padded) {
  F zero{};
  for (int64_t row = 0; row < padded; row += W) {
    zero = fma(load(part.sum + row), F{}, zero);
    for (int64_t v = 0; v < V; ++v) zero = fma(load(part.out + v * kLd + row), F{}, zero);
  }
  return !any_not_zero(zero);
}

struct ForwardMemory {
  Real *queries, *scores, *kept, *key_copy, *value_copy, *query_rows;
  Allowed* stack;
  Partial part, next;
  Real *few_queries, *few_scores, *few_out;

  ForwardMemory(Arena& from, const Problem& p)
      : queries(from.take<Real>(p.width * kLd)),
        scores(from.take<Real>(kTileKeys * kPanel)),
        kept(from.take<Real>(kTileKeys * kPanel)),
        key_copy(from.take<Real>(kTileKeys * p.width)),
        value_copy(from.take<Real>(kTileKeys * p.value_width)),
        query_rows(from.take<Real>(kBlockRows * p.width)),
        stack(from.take<Allowed>(kMaxMaskDepth)),
        part(from, p.value_width),
        next(from, p.value_width),
        few_queries(from.take<Real>(kMostFew * p.width)),
        few_scores(from.take<Real>(kMostFew * kTileKeys)),
        few_out(from.take<Real>(kMostFew * p.value_width)) {}
};

// A block at work. Where `careful`, what is not finite is looked for, and cleaned, before it is computed with.
struct BlockForward : ForwardMemory {
  const Problem& p;
  const Block& block;
  int64_t group;
  bool careful, few;
  Span whole;
  uint8_t spoiled[kBlockRows] = {};
  bool stretched = false;  // whether the products of a row are multiplied after them (Factors)
  alignas(64) Real after[kBlockRows];

  BlockForward(const Problem& p, const Block& block, int64_t group, bool careful)
      : ForwardMemory(arena.start(), p),
        p(p),
        block(block),
        group(group),
        careful(careful),
        whole(block.span(0, block.rows)) {
    int64_t D = p.width, V = p.value_width;
    bool simple = !p.modifiers && !p.bias.data && !p.mask_ops && !p.drops;
    few = simple && block.rows <= kMostFew && D % W == 0 && V % W == 0 && whole.alike();
    load_queries();
  }

  void load_queries() {
    int64_t D = p.width;
    const Real* rows[kBlockRows];
    Real before[kBlockRows];
    for (int64_t r = 0; r < kBlockRows; ++r) after[r] = 1;
    for (int64_t r = 0; r < block.rows; ++r) {
      int64_t at = offset_of(p, p.query, block.batch, block.head[r], block.query[r]);
      if (p.query.type == kOwnType && !careful) {
        rows[r] = static_cast<const Real*>(p.query.data) + at;
      } else {
        rows[r] = query_rows + r * D;
        widen_row(p.query.data, p.query.type, at, 1, query_rows + r * D, D);
        if (careful && !finite_row(rows[r], D)) {
          spoiled[r] = 1;
          memset(query_rows + r * D, 0, D * sizeof(Real));
        }
      }
      Factors factors = factors_of(rows[r], D, Real(p.scale));
      before[r] = factors.before;
      after[r] = factors.after;
      stretched |= after[r] != 1;
    }
    few = few && !stretched;
    pack_transposed(rows, block.rows, D, before, queries);
    for (int64_t r = 0; r < block.rows && few; ++r)
      for (int64_t d = 0; d < D; ++d) few_queries[r * D + d] = queries[d * kLd + r];
  }

  // Keys [key, key + keys) of one tile.
  void tile(int64_t key, int64_t keys, Partial& to) {
    Allowed* allowed = nullptr;
    if (p.mask_ops) {
      Seen seen = allow(p, block, key, keys, stack);
      if (seen == Seen::none) return;
      allowed = seen == Seen::some ? stack : nullptr;
    }
    uint8_t bad[kTileKeys] = {};
    KeysAndValues from = keys_and_values(p, block.batch, group, key, keys, careful, key_copy, value_copy, bad);
    if (careful) note_spoiled(p, block, key, keys, bad, allowed, spoiled);
    if (few) {
      Few{p, few_queries, few_scores, few_out}.tile(block.rows, from, key, keys, to);
      return;
    }
    Forward work{p, block, queries, scores, kept, stretched ? after : nullptr};
    for (int64_t row = 0; row < block.padded; row += kPanel) {
      if (row + W < block.padded)
        work.panel<2>(row, from, key, keys, allowed, to);
      else
        work.panel<1>(row, from, key, keys, allowed, to);
    }
  }

  // The sums over a chunk of the keys.
  void chunk(int64_t number, Partial& to) {
    int64_t begin = most(number * kChunkKeys, whole.begin), end = least((number + 1) * kChunkKeys, whole.end);
    to.clear(p.value_width, block.padded);
    if (few) memset(few_out, 0, block.rows * p.value_width * sizeof(Real));
    for (int64_t at = begin / kTileKeys; begin < end && at * kTileKeys < end; ++at) {
      int64_t key = most(at * kTileKeys, begin);
      tile(key, least((at + 1) * kTileKeys, end) - key, to);
    }
    for (int64_t r = 0; r < block.rows && few; ++r)
      for (int64_t v = 0; v < p.value_width; ++v) to.out[v * kLd + r] = few_out[r * p.value_width + v];
  }

  // The sums over all keys.
  void all_chunks() {
    int64_t first = whole.end ? whole.begin / kChunkKeys : 0, last = (whole.end + kChunkKeys - 1) / kChunkKeys;
    chunk(first, part);
    for (int64_t number = first + 1; number < last; ++number) {
      chunk(number, next);
      merge(part, next, p.value_width, block.padded);
    }
  }

  // Writes the results, unless something is not finite and was not looked for. The fast path cannot lose a NaN:
  // weights, sums and products keep it, and a score that overflows is NaN. So this look at the sums is enough.
  bool write() {
    if (!careful && !all_finite(part, p.value_width, block.padded)) return false;
    write_results(p, block, part, spoiled);
    return true;
  }
};

Block block_of(const Problem& p, int64_t batch, int64_t group, int64_t index) {
  return Block(p, batch, group, index / p.blocks_of_run(), index % p.blocks_of_run());
}

void forward_carefully(const Problem& p, const Block& block, int64_t group) {
  BlockForward work(p, block, group, true);
  work.all_chunks();
  work.write();
}

void forward(const Problem& p, int64_t batch, int64_t group, int64_t index) {
  NoDenormals denormals;
  Block block = block_of(p, batch, group, index);
  BlockForward work(p, block, group, false);
  work.all_chunks();
  if (!work.write()) forward_carefully(p, block, group);
}

// ---------------------------------------------------------------------------------------------------------------------
// Where blocks are few, several threads take the chunks of one; then the sums are merged as one thread would merge them

int64_t forward_bytes(const Problem& p) { return bytes_of<ForwardMemory>(p); }

int64_t partial_bytes(const Problem& p) { return (p.value_width + 2) * kBlockRows * int64_t(sizeof(Real)); }

void forward_chunk(const Problem& p, int64_t batch, int64_t group, int64_t index, int64_t number, void* to) {
  NoDenormals denormals;
  Block block = block_of(p, batch, group, index);
  BlockForward work(p, block, group, false);
  work.chunk(number, work.part);
  Real* at = static_cast<Real*>(to);
  memcpy(at, work.part.top, kBlockRows * sizeof(Real));
  memcpy(at + kBlockRows, work.part.sum, kBlockRows * sizeof(Real));
  for (int64_t v = 0; v < p.value_width; ++v)
    memcpy(at + (v + 2) * kBlockRows, work.part.out + v * kLd, block.padded * sizeof(Real));
}

void forward_join(const Problem& p, int64_t batch, int64_t group, int64_t index, const void* from) {
  NoDenormals denormals;
  Block block = block_of(p, batch, group, index);
  BlockForward work(p, block, group, false);
  for (int64_t number = 0; number < p.key_chunks(); ++number) {
    Partial& to = number ? work.next : work.part;
    const Real* at = static_cast<const Real*>(from) + number * (p.value_width + 2) * kBlockRows;
    memcpy(to.top, at, kBlockRows * sizeof(Real));
    memcpy(to.sum, at + kBlockRows, kBlockRows * sizeof(Real));
    for (int64_t v = 0; v < p.value_width; ++v)
      memcpy(to.out + v * kLd, at + (v + 2) * kBlockRows, block.padded * sizeof(Real));
    if (number) merge(work.part, work.next, p.value_width, block.padded);
  }
  if (!work.write()) forward_carefully(p, block, group);
}

}  // namespace
}  // namespace ATTENDAX_UNIT
}  // namespace attendax
