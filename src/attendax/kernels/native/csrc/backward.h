// The backward of one chunk of the queries of a group (L13).
//
// With w the weights after dropout and dp = dout . v: delta = out . dout - dlse, ds = p (dp - delta), dq = scale ds k,
// dk = scale ds^T q, dv = w^T dout. Scores are computed again. The chunk owns the rows of dq. Its shares of dk and dv
// are summed for kSuperKeys keys at a time in memory of the thread, and join those of the chunks before it, in their
// order (L15).
//
// What is not finite (L6): a row that nothing depends on is 0 in query and dout, and its weights are 0. Any other row
// that is not finite has NaN for its maximum, so NaN at each pair that it may look at, and 0 elsewhere; all other
// factors are finite.
#pragma once
#include "forward.h"

namespace attendax {
namespace ATTENDAX_UNIT {
namespace {

// The rows of a block, prepared: what is the same for all keys.
struct BackwardRows {
  Real *queries, *douts, *outs;  // packed, transposed: (D, rows) scaled, (V, rows) divided by the row sum, (V, rows)
  Real *query_rows, *dout_rows;  // the same as rows, filled up with zeros to whole vectors
  Real* dqueries;                // (D, rows)
  Real *shift, *delta;           // of each row: the maximum, or NaN, or inf where nothing depends on it
  Real* after;                   // of each row (Factors)
  int64_t query_step, dout_step;
  bool spoiled = false, unread = false;  // whether a row is NaN; whether nothing depends on one
  bool stretched = false;                // whether the products of one are multiplied after them

  BackwardRows(Arena& from, int64_t D, int64_t V) : query_step(rounded_up(D, W)), dout_step(rounded_up(V, W)) {
    queries = from.take<Real>(D * kLd);
    dqueries = from.take<Real>(D * kLd);
    douts = from.take<Real>(V * kLd);
    outs = from.take<Real>(V * kLd);
    query_rows = from.take<Real>(kBlockRows * query_step);
    dout_rows = from.take<Real>(kBlockRows * dout_step);
    shift = from.take<Real>(kBlockRows);
    delta = from.take<Real>(kBlockRows);
    after = from.take<Real>(kBlockRows);
  }
};

// A row that is filled up with zeros to `n`, whole vectors.
INLINE bool any_not_zero(const Real* x, int64_t n) {
  I any{};
  for (int64_t i = 0; i < n; i += W) any |= load(x + i) != F{};
  return any_of(any);
}

INLINE void scale_row(Real* x, int64_t n, Real factor) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] * factor;
}

// x (keys, rows), kLd apart, times a factor for each row
void times_rows(Real* x, int64_t keys, const Real* factors, int64_t rows) {
  for (int64_t k = 0; k < keys; ++k)
    for (int64_t r = 0; r < rows; r += W) store(x + k * kLd + r, load(x + k * kLd + r) * load(factors + r));
}

// delta += out . dout, a row in each lane. The products are added in the order of dp: where out is a value, both are
// rounded alike, and their difference is 0 (L8).
void add_products(const Real* outs, const Real* douts, int64_t rows, int64_t columns, Real* delta) {
  for (int64_t row = 0; row < rows; row += W) {
    F sum{}, whole{};
    for (int64_t from = 0, size = piece_of(columns); from < columns; from += size) {
      if (from % kFar == 0) {
        whole += sum;
        sum = F{};
      }
      F piece{};
      for (int64_t c = from; c < least(columns, from + size); ++c)
        piece = fma(load(outs + c * kLd + row), load(douts + c * kLd + row), piece);
      sum += piece;
    }
    store(delta + row, whole + sum + load(delta + row));
  }
}

// One row. Of delta there is only the share of dlse. Returns out, or zeros where the gradients are 0 or NaN.
const Real* prepare(const Problem& p, const Block& block, int64_t r, BackwardRows& b) {
  int64_t D = p.width, V = p.value_width, batch = block.batch, n = block.head[r], t = block.query[r];
  Real *query = b.query_rows + r * b.query_step, *dout = b.dout_rows + r * b.dout_step;
  memset(query, 0, b.query_step * sizeof(Real));
  memset(dout, 0, b.dout_step * sizeof(Real));
  b.shift[r] = kInfinity;
  b.delta[r] = 0;
  b.after[r] = 1;
  if (r >= block.rows) {
    b.unread = true;
    return dout;
  }
  widen_row(p.dout.data, p.dout.type, offset_of(p, p.dout, batch, n, t), 1, dout, V);
  Real dlse = real_at(p, p.dlse, batch, n, t), sum = real_at(p, p.saved_sum, batch, n, t);
  bool read = (any_not_zero(dout, b.dout_step) || !(dlse == 0)) && sum != 0 && block.first[r] < block.last[r];
  if (!read) {
    memset(dout, 0, b.dout_step * sizeof(Real));
    b.unread = true;
    return dout;
  }
  Real top = real_at(p, p.saved_max, batch, n, t);
  const Real* out = static_cast<const Real*>(p.saved_out.data) + offset_of(p, p.saved_out, batch, n, t);
  widen_row(p.query.data, p.query.type, offset_of(p, p.query, batch, n, t), 1, query, D);
  // Of finite rows delta may be too large: then ds is, and dq and dk with it, but dv does not depend on it (L7).
  bool finite = is_finite(sum) && is_finite(top) && is_finite(dlse);
  if (!finite || !finite_row(query, D) || !finite_row(dout, V) || !finite_row(out, V)) {
    memset(query, 0, b.query_step * sizeof(Real));
    memset(dout, 0, b.dout_step * sizeof(Real));
    b.shift[r] = kNaN;
    b.spoiled = true;
    return dout;
  }
  Factors factors = factors_of(query, D, Real(p.scale));
  scale_row(query, D, factors.before);
  b.after[r] = factors.after;
  b.stretched |= factors.after != 1;
  scale_row(dout, V, Real(1) / sum);
  b.shift[r] = top;
  b.delta[r] = -dlse / sum;
  return out;
}

void prepare(const Problem& p, const Block& block, BackwardRows& b) {
  b.spoiled = b.unread = b.stretched = false;
  const Real *queries[kBlockRows], *douts[kBlockRows], *outs[kBlockRows];
  for (int64_t r = 0; r < block.padded; ++r) {
    outs[r] = prepare(p, block, r, b);
    queries[r] = b.query_rows + r * b.query_step;
    douts[r] = b.dout_rows + r * b.dout_step;
  }
  pack_transposed(queries, block.padded, p.width, nullptr, b.queries);
  pack_transposed(douts, block.padded, p.value_width, nullptr, b.douts);
  pack_transposed(outs, block.padded, p.value_width, nullptr, b.outs);
  add_products(b.outs, b.douts, block.padded, p.value_width, b.delta);
  for (int64_t d = 0; d < p.width; ++d) memset(b.dqueries + d * kLd, 0, block.padded * sizeof(Real));
}

// Gradients of the arrays of modifiers, for the rows of a chunk: a number or a table for each head. Sums of very many
// numbers, so in double. They join the results in the order of the chunks, as dk and dv do.
struct ModifierSums {
  double* at[kMaxModifiers];  // (heads of a group, 1 or 2 radius + 1)
};

int64_t sums_of_modifier(const Problem& p, int n) {
  return p.repeat() * (p.modifier[n].kind == ModifierKind::alibi ? 1 : 2 * p.modifier[n].radius + 1);
}

// Sums of a chunk over its queries, for the keys of a super tile.
struct KeySums {
  Real *dkey, *dvalue;  // (keys, D and V in whole vectors)
};

struct BackwardMemory {
  BackwardRows rows;
  Real *weights, *dscores, *slopes, *kept;  // (keys, rows of a block), kLd apart
  Real *key_copy, *value_copy;
  Allowed* stack;
  KeySums sums;
  ModifierSums modifier_sums = {};
  double* bias_rows = nullptr;  // of a bias that is the same for all keys: its gradient for each row of the chunk

  BackwardMemory(Arena& from, const Problem& p) : rows(from, p.width, p.value_width) {
    from.take_all(kTileKeys * kLd, weights, dscores, slopes, kept);
    key_copy = from.take<Real>(kTileKeys * p.width);
    value_copy = from.take<Real>(kTileKeys * p.value_width);
    stack = from.take<Allowed>(kMaxMaskDepth);
    int64_t keys = least(kSuperKeys, rounded_up(p.keys, kTileKeys));
    sums = {from.take<Real>(keys * rows.query_step), from.take<Real>(keys * rows.dout_step)};
    for (int n = 0; n < p.modifiers; ++n) modifier_sums.at[n] = from.take<double>(sums_of_modifier(p, n));
    if (p.sums_bias_of_rows()) bias_rows = from.take<double>(kChunkQueries);
  }
};

// What a chunk has at hand while its tiles go by.
struct Backward {
  const Problem& p;
  Real *weights, *dscores, *slopes, *kept;  // (keys, rows of a block), kLd apart
  ModifierSums modifier_sums;
  double* bias_rows;  // as in BackwardMemory, from the first row of the block on

  // Scores, weights, their gradients, for N vectors of queries; dq grows.
  template <int N>
  void panel(const Block& block, const BackwardRows& b, int64_t row, const KeysAndValues& from, int64_t key,
             int64_t keys, bool masked, const Allowed* allowed, int64_t first) {
    Panel<N> rows{p, block, row, b.stretched ? b.after : nullptr};
    Real *w = weights + row, *ds = dscores + row, *slope = slopes + row, *keep = kept + row;
    F shift[N], delta[N], unused[N];
    for (int j = 0; j < N; ++j) {
      shift[j] = load(b.shift + row + j * W);
      delta[j] = load(b.delta + row + j * W);
      unused[j] = all(kLowest);
    }
    rows.scores(from.key, from.key_step, b.queries, key, keys, masked, allowed, first, w, kLd, unused,
                p.modifiers ? slope : nullptr);
    bool hides = masked || allowed || p.bias.data || p.modifiers;
    for (int64_t k = 0; k < keys; ++k)
      for (int j = 0; j < N; ++j) {
        Real* at = w + k * kLd + j * W;
        F s = load(at), x = exp_of(s - shift[j]);
        if (b.unread) x = select(shift[j] == kInfinity, F{}, x);      // even where its score is NaN
        if (hides && b.spoiled) x = select(s == -kInfinity, F{}, x);  // in a row of NaN
        store(at, x);
      }
    if (p.drops) rows.dropout(key, keys, keep, kLd);
    in_tiles<Order::of_width>(keys, [=, this]<int M>(Rows<M>, int64_t r) INLINED {
      register_tile<M, N, true, Order::of_width>(
          from.value + r * from.value_step, from.value_step, b.douts + row, kLd, p.value_width, [&](F(&acc)[M][N]) {
            for (int i = 0; i < M; ++i)
              for (int j = 0; j < N; ++j) {
                int64_t at = (r + i) * kLd + j * W;
                store(ds + at, score_gradient(acc[i][j], delta[j], w + at, keep + at));
              }
          });
    });
    if (p.dbias) add_bias_gradient<N>(rows, key, keys, ds);
    if (p.modifiers) pull_modifiers<N>(rows, key, keys, ds, slope);
    add_product<N, false, false>(p.width, keys, from.key, from.key_step, ds, kLd, b.dqueries + row, kLd, nullptr);
    if (b.stretched) times_rows(ds, keys, b.after + row, N * W);  // dk is of the rows as they were multiplied
  }

  // p (dp - delta), and on the way the weight after dropout.
  INLINE F score_gradient(F dp, F delta, Real* weight, const Real* kept) const {
    F x = load(weight);
    if (p.drops) {
      F factor = load(kept);
      dp = dp * factor;
      store(weight, x * factor);
    }
    return select(x == F{}, F{}, x * (dp - delta));  // a product may overflow where the weight is 0
  }

  template <int N>
  void add_bias_gradient(const Panel<N>& rows, int64_t key, int64_t keys, const Real* ds) const {
    const View& v = p.dbias_view;
    for (int64_t r = 0; r < N * W && rows.row + r < rows.block.rows; ++r) {
      if (bias_rows) {
        for (int64_t k = 0; k < keys; ++k) bias_rows[rows.row + r] += double(ds[k * kLd + r]);
        continue;
      }
      const Block& block = rows.block;
      int64_t at = offset_of(p, v, block.batch, block.head[rows.row + r], block.query[rows.row + r]) + key * v.column;
      if (p.dbias_sums)
        for (int64_t k = 0; k < keys; ++k) p.dbias_sums[at + k * v.column] += double(ds[k * kLd + r]);
      else
        for (int64_t k = 0; k < keys; ++k) static_cast<Real*>(p.dbias)[at + k] = ds[k * kLd + r];
    }
  }

  // From gradients of the modified scores to those of the products, and of slopes and tables on the way.
  template <int N>
  void pull_modifiers(const Panel<N>& rows, int64_t key, int64_t keys, Real* ds, const Real* slope) {
    bool capped = false;  // a softcap behind has not been pulled through yet: `ds` is of the scores before it
    for (int n = p.modifiers - 1; n >= 0; --n) {
      const Modifier& m = p.modifier[n];
      if (m.kind == ModifierKind::softcap) {
        for (int64_t k = 0; k < keys && !capped; ++k)
          for (int j = 0; j < N; ++j) {
            Real* at = ds + k * kLd + j * W;
            F x = load(at);
            store(at, select(x == F{}, F{}, x * load(slope + k * kLd + j * W)));
          }
        capped = true;
      } else if (m.gradient) {
        add_modifier_gradient<N>(rows, m, n, key, keys, ds);
      }
    }
  }

  template <int N>
  void add_modifier_gradient(const Panel<N>& rows, const Modifier& m, int n, int64_t key, int64_t keys,
                             const Real* ds) {
    int64_t lanes = least(N * W, rows.block.rows - rows.row);
    double* sums = modifier_sums.at[n];
    int64_t size = m.kind == ModifierKind::alibi ? 1 : 2 * m.radius + 1;
    if (m.kind == ModifierKind::alibi) {
      for (int64_t r = 0; r < lanes; ++r) {
        int j = int(r / W), i = int(r % W);
        double sum = 0;
        for (int64_t k = 0; k < keys; ++k) {
          double far = rows.distance(m, j, i, key + k);
          sum += double(ds[k * kLd + r]) * (far < 0 ? -far : far);
        }
        sums[rows.head(j, i) % p.repeat()] -= sum;
      }
    } else if (rows.in_order()) {  // the sum along each diagonal, then each to its column
      double diagonal[kTileKeys + kPanel] = {};
      for (int64_t k = 0; k < keys; ++k)
        for (int64_t r = 0; r < lanes; ++r) diagonal[r - k + keys - 1] += double(ds[k * kLd + r]);
      int64_t first = rows.ahead(m, 0, 0, key);
      for (int64_t d = 0; d < keys + lanes - 1; ++d)
        sums[rows.head(0, 0) % p.repeat() * size + rows.column(m, first + keys - 1 - d)] += diagonal[d];
    } else {
      for (int64_t r = 0; r < lanes; ++r)
        for (int64_t k = 0; k < keys; ++k) {
          int j = int(r / W), i = int(r % W);
          int64_t column = rows.column(m, rows.ahead(m, j, i, key + k));
          sums[rows.head(j, i) % p.repeat() * size + column] += double(ds[k * kLd + r]);
        }
    }
  }
};

// to (keys x N vectors) += weights (keys x rows) from (rows x N vectors). Panels that see no key of a register tile are
// left out at both ends: they would add zeros.
template <int N>
INLINE void add_over_queries(const Real* weights, int64_t keys, int64_t rows, const Span* spans, int64_t panels,
                             int64_t key, const Real* from, int64_t step, Real* to, int64_t to_step) {
  in_tiles<Order::chain>(keys, [=]<int M>(Rows<M>, int64_t r) INLINED {
    int64_t a = 0, b = panels;
    auto sees = [&](int64_t i) { return spans[i].begin < key + r + M && spans[i].end > key + r; };
    while (a < b && !sees(a)) ++a;
    while (a < b && !sees(b - 1)) --b;
    if (a == b) return;
    Real* c = to + r * to_step;
    register_tile<M, N, true, Order::chain>(weights + r * kLd + a * kPanel, kLd, from + a * kPanel * step, step,
                                            least(rows, b * kPanel) - a * kPanel, [&](F(&acc)[M][N]) {
                                              for (int i = 0; i < M; ++i)
                                                for (int j = 0; j < N; ++j) {
                                                  Real* at = c + i * to_step + j * W;
                                                  store(at, load(at) + acc[i][j]);
                                                }
                                            });
  });
}

INLINE void add_all_columns(const Real* weights, int64_t keys, int64_t rows, const Span* spans, int64_t panels,
                            int64_t key, const Real* from, int64_t step, Real* to) {
  int64_t c = 0;
  for (; c + 2 * W <= step; c += 2 * W)
    add_over_queries<2>(weights, keys, rows, spans, panels, key, from + c, step, to + c, step);
  if (c < step) add_over_queries<1>(weights, keys, rows, spans, panels, key, from + c, step, to + c, step);
}

void clear_rows(Real* x, int64_t rows, int64_t row, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) memset(x + r * kLd + row, 0, width * sizeof(Real));
}

// One block of queries beside the keys [from, to) of a super tile.
void backward_block(Backward& work, const Block& block, BackwardRows& b, int64_t group, int64_t begin, int64_t end,
                    bool clean, Real* key_copy, Real* value_copy, Allowed* stack, const KeySums& sums) {
  const Problem& p = work.p;
  int64_t panels = (block.padded + kPanel - 1) / kPanel;
  Span spans[kBlockRows / kPanel + 1], whole = block.span(0, block.rows);
  for (int64_t i = 0; i < panels; ++i) spans[i] = block.span(i * kPanel, least(block.padded, (i + 1) * kPanel));
  int64_t low = most(begin, whole.begin), high = least(end, whole.end);
  for (int64_t tile = low / kTileKeys; low < high && tile * kTileKeys < high; ++tile) {
    int64_t key = most(tile * kTileKeys, low), keys = least((tile + 1) * kTileKeys, high) - key;
    const Allowed* allowed = nullptr;
    if (p.mask_ops) {
      Seen seen = allow(p, block, key, keys, stack);
      if (seen == Seen::none) continue;
      allowed = seen == Seen::some ? stack : nullptr;
    }
    uint8_t bad[kTileKeys];
    KeysAndValues from = keys_and_values(p, block.batch, group, key, keys, clean, key_copy, value_copy, bad);
    for (int64_t i = 0; i < panels; ++i) {
      int64_t row = i * kPanel, lanes = least(kPanel, block.padded - row);
      int64_t first = least(key + keys, most(key, spans[i].begin)), last = most(first, least(key + keys, spans[i].end));
      int64_t skip = first - key;
      clear_rows(work.weights, skip, row, lanes);
      clear_rows(work.dscores, skip, row, lanes);
      clear_rows(work.weights + (last - key) * kLd, key + keys - last, row, lanes);
      clear_rows(work.dscores + (last - key) * kLd, key + keys - last, row, lanes);
      if (first == last) continue;
      bool masked = first < spans[i].all_begin || last > spans[i].all_end;
      KeysAndValues seen = {from.key + skip * from.key_step, from.value + skip * from.value_step, from.key_step,
                            from.value_step};
      Backward moved = work;
      moved.weights += skip * kLd;
      moved.dscores += skip * kLd;
      if (lanes > W)
        moved.panel<2>(block, b, row, seen, first, last - first, masked, allowed, skip);
      else
        moved.panel<1>(block, b, row, seen, first, last - first, masked, allowed, skip);
    }
    add_all_columns(work.weights, keys, block.padded, spans, panels, key, b.dout_rows, b.dout_step,
                    sums.dvalue + (key - begin) * b.dout_step);
    add_all_columns(work.dscores, keys, block.padded, spans, panels, key, b.query_rows, b.query_step,
                    sums.dkey + (key - begin) * b.query_step);
  }
}

// Whether all keys and values of a super tile are finite.
bool finite_keys(const Problem& p, int64_t batch, int64_t group, int64_t begin, int64_t end, Real* key_copy,
                 Real* value_copy) {
  bool finite = true;
  for (int64_t key = begin; key < end; key += kTileKeys) {
    int64_t keys = least(kTileKeys, end - key);
    KeysAndValues from = keys_and_values(p, batch, group, key, keys, false, key_copy, value_copy, nullptr);
    for (int64_t k = 0; k < keys; ++k)
      finite = finite && finite_row(from.key + k * from.key_step, p.width) &&
               finite_row(from.value + k * from.value_step, p.value_width);
  }
  return finite;
}

// What the keys of a super tile give to dq of the rows of a block joins what those before gave.
void join_dqueries(const Problem& p, const Block& block, const BackwardRows& b, bool first) {
  Real* rows[kBlockRows];
  alignas(64) Real factor[kBlockRows];
  for (int64_t r = 0; r < block.rows; ++r) {
    int64_t line = (block.batch * p.heads + block.head[r]) * p.queries + block.query[r];
    rows[r] = static_cast<Real*>(p.dquery) + line * p.width;
  }
  for (int64_t r = 0; r < kBlockRows; ++r) factor[r] = Real(p.scale);
  if (first)
    unpack_transposed<false>(b.dqueries, block.rows, p.width, factor, rows);
  else
    unpack_transposed<true>(b.dqueries, block.rows, p.width, factor, rows);
}

INLINE void join_row(Real* to, const Real* from, int64_t n, bool first) {
  if (first)
    memcpy(to, from, n * sizeof(Real));
  else
    for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

// The share of a chunk joins the results.
void join(const Problem& p, int64_t batch, int64_t group, int64_t begin, int64_t end, const KeySums& sums,
          int64_t query_step, int64_t dout_step, bool first) {
  int64_t line = (batch * p.groups + group) * p.keys;
  for (int64_t key = begin; key < end; ++key) {
    join_row(static_cast<Real*>(p.dkey) + (line + key) * p.width, sums.dkey + (key - begin) * query_step, p.width,
             first);
    join_row(static_cast<Real*>(p.dvalue) + (line + key) * p.value_width, sums.dvalue + (key - begin) * dout_step,
             p.value_width, first);
  }
}

void join_modifiers(const Problem& p, int64_t batch, int64_t group, const ModifierSums& sums) {
  for (int n = 0; n < p.modifiers; ++n) {
    const Modifier& m = p.modifier[n];
    if (!m.gradient) continue;
    int64_t size = m.kind == ModifierKind::alibi ? 1 : 2 * m.radius + 1;
    Real* to = static_cast<Real*>(m.gradient) + (batch * p.heads + group * p.repeat()) * size;
    for (int64_t i = 0; i < p.repeat() * size; ++i) to[i] = Real(double(to[i]) + sums.at[n][i]);
  }
}

// The share of the blocks [from, to) in the gradient of a bias that is the same for all keys. It joins after the last
// super tile: before, another chunk may be at other keys, whose numbers these are, too.
void join_bias_rows(const Problem& p, int64_t batch, int64_t group, int64_t run, int64_t from, int64_t to,
                    const double* rows) {
  for (int64_t i = from; i < to; ++i, rows += kBlockRows) {
    Block block(p, batch, group, run, i);
    for (int64_t r = 0; r < block.rows; ++r)
      p.dbias_sums[offset_of(p, p.dbias_view, batch, block.head[r], block.query[r])] += rows[r];
  }
}

int64_t backward_bytes(const Problem& p) { return bytes_of<BackwardMemory>(p); }

void backward(const Problem& p, int64_t batch, int64_t group, int64_t chunk, const Turns& turns) {
  NoDenormals denormals;
  BackwardMemory memory(arena.start(), p);
  BackwardRows& b = memory.rows;
  KeySums& sums = memory.sums;
  Backward work{p, memory.weights, memory.dscores, memory.slopes, memory.kept, memory.modifier_sums, nullptr};
  for (int n = 0; n < p.modifiers; ++n) memset(work.modifier_sums.at[n], 0, sums_of_modifier(p, n) * sizeof(double));

  int64_t run = chunk / p.chunks_of_run(), part = chunk % p.chunks_of_run();
  int64_t from = part * p.blocks_of_chunk(), to = least(from + p.blocks_of_chunk(), p.blocks_of_run());
  double* bias_rows = memory.bias_rows;
  if (bias_rows) memset(bias_rows, 0, kChunkQueries * sizeof(double));
  for (int64_t super = 0; super < p.supers(); ++super) {
    int64_t begin = super * kSuperKeys, end = least(begin + kSuperKeys, p.keys);
    memset(sums.dkey, 0, (end - begin) * b.query_step * sizeof(Real));
    memset(sums.dvalue, 0, (end - begin) * b.dout_step * sizeof(Real));
    bool clean = !finite_keys(p, batch, group, begin, end, memory.key_copy, memory.value_copy);
    if (turns.whole_block) turns.wait(turns.state, super);
    for (int64_t i = from; i < to; ++i) {
      Block block(p, batch, group, run, i);
      prepare(p, block, b);
      work.bias_rows = bias_rows ? bias_rows + (i - from) * kBlockRows : nullptr;
      backward_block(work, block, b, group, begin, end, clean, memory.key_copy, memory.value_copy, memory.stack, sums);
      join_dqueries(p, block, b, super == 0);
    }
    if (!turns.whole_block) turns.wait(turns.state, super);
    join(p, batch, group, begin, end, sums, b.query_step, b.dout_step, turns.first);
    if (super == p.supers() - 1) {
      join_modifiers(p, batch, group, work.modifier_sums);
      if (bias_rows) join_bias_rows(p, batch, group, run, from, to, bias_rows);
    }
    turns.pass(turns.state, super);
  }
}

}  // namespace
}  // namespace ATTENDAX_UNIT
}  // namespace attendax
