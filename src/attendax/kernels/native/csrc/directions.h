// Tangents of out and lse, and tangents of the gradients, of texts so short that one tile has all keys (L12).
//
// A prime marks a tangent. With p the weights, w those after dropout, dp = dout . v:
//   s' = scale (q' k + q k'), lse' = sum p s', p' = p (s' - lse'), out' = sum w' v + w v'
//   delta = sum p dp - dlse, ds = p (dp - delta), dp' = dout' . v + dout . v'
//   delta' = sum (p' dp + p dp') - dlse', ds' = p' (dp - delta) + p (dp' - delta')
//   dq' = scale (ds' k + ds k'), dk' = scale (ds'^T q + ds^T q'), dv' = w'^T dout + w^T dout'
// The difference s' - lse' comes first: what is common to a row leaves no rounding (L8).
//
// What is not finite, in an array or its tangent, is 0 before it is computed with (L6). A row that holds or sees it
// then has NaN at each pair that it may look at, or 0 where nothing depends on the row. The tangents of query, key and
// value are only met by a row with dout or dlse.
#pragma once
#include "backward.h"

namespace attendax {
namespace ATTENDAX_UNIT {
namespace {

// Rows [0, rows) of a head, `step` apart; zeros where there is no array.
void take_rows(const Problem& p, const View& v, int64_t batch, int64_t head, int64_t first, int64_t rows, int64_t width,
               Real* to, int64_t step) {
  if (!v.data) {
    memset(to, 0, rows * step * sizeof(Real));
    return;
  }
  int64_t at = offset_of(p, v, batch, head, first);
  if (step == width && v.row == width)
    widen_row(v.data, v.type, at, 1, to, rows * width);
  else
    for (int64_t r = 0; r < rows; ++r) widen_row(v.data, v.type, at + r * v.row, 1, to + r * step, width);
}

// A sum over the keys of each row, in pieces.
struct Sum {
  F whole{}, piece{};
  INLINE void add(int64_t key, F x) {
    piece += x;
    if (!ends_piece(key)) return;
    whole += piece;
    piece = F{};
  }
  INLINE F total() const { return whole + piece; }
};

struct DirectionsMemory {
  Real *key, *key_moved, *value, *value_moved;                        // rows
  Real *query_rows, *query_rows_moved, *dout_rows, *dout_rows_moved;  // rows, scaled; filled up with zeros
  Real *queries, *queries_moved, *douts, *douts_moved;                // transposed: (D or V, rows)
  Real *scores, *weights, *weights_moved, *ds, *ds_moved, *kept;      // (keys, rows of a block), kLd apart
  Real *of_rows, *lse_moved, *dlse, *dlse_moved;                      // (D or V, rows): dq' or out'; of each row
  Real *after, *after_moved;                                          // of each row and its tangent (Factors)
  Real *dkey, *dvalue;                                                // sums over blocks, in whole vectors
  Allowed* stack;

  DirectionsMemory(Arena& from, const Problem& p) {
    int64_t D = p.width, V = p.value_width, query_step = rounded_up(D, W), dout_step = rounded_up(V, W);
    from.take_all(kTileKeys * query_step, key, key_moved, dkey);
    from.take_all(kTileKeys * dout_step, value, value_moved, dvalue);
    from.take_all(kBlockRows * query_step, query_rows, query_rows_moved);
    from.take_all(kBlockRows * dout_step, dout_rows, dout_rows_moved);
    from.take_all(D * kLd, queries, queries_moved);
    from.take_all(V * kLd, douts, douts_moved);
    of_rows = from.take<Real>(most(D, V) * kLd);
    from.take_all(kTileKeys * kLd, scores, weights, weights_moved, ds, ds_moved, kept);
    from.take_all(kBlockRows, lse_moved, dlse, dlse_moved, after, after_moved);
    stack = from.take<Allowed>(kMaxMaskDepth);
  }
};

struct Directions : DirectionsMemory {
  const Problem& p;
  int64_t batch, group, D = p.width, V = p.value_width, keys = p.keys;
  int64_t query_step = rounded_up(D, W), dout_step = rounded_up(V, W);
  bool hides;      // whether a key, or its tangent, is not finite
  bool stretched;  // whether the products of a row, or of its tangent, are multiplied after them
  uint8_t bad[kTileKeys] = {}, bad_moved[kTileKeys] = {}, spoiled[kBlockRows];
  uint8_t read[kBlockRows], meets_moved[kBlockRows];  // whether anything depends on a row; on tangents through it

  Directions(const Problem& p, int64_t batch, int64_t group)
      : DirectionsMemory(arena.start(), p), p(p), batch(batch), group(group) {
    take_rows(p, p.key, batch, group, 0, keys, D, key, D);
    take_rows(p, p.key_moved, batch, group, 0, keys, D, key_moved, D);
    take_rows(p, p.value, batch, group, 0, keys, V, value, V);
    take_rows(p, p.value_moved, batch, group, 0, keys, V, value_moved, V);
    hides = !finite_row(key, keys * D) || !finite_row(key_moved, keys * D) || !finite_row(value, keys * V) ||
            !finite_row(value_moved, keys * V);
    for (int64_t k = 0; k < keys && hides; ++k) {
      Real *one = key + k * D, *moved = key_moved + k * D, *other = value + k * V, *other_moved = value_moved + k * V;
      bad[k] = !finite_row(one, D) || !finite_row(other, V);
      bad_moved[k] = bad[k] || !finite_row(moved, D) || !finite_row(other_moved, V);
      if (bad[k]) {
        memset(one, 0, D * sizeof(Real));
        memset(other, 0, V * sizeof(Real));
      }
      if (bad_moved[k]) {
        memset(moved, 0, D * sizeof(Real));
        memset(other_moved, 0, V * sizeof(Real));
      }
    }
    memset(dkey, 0, keys * query_step * sizeof(Real));
    memset(dvalue, 0, keys * dout_step * sizeof(Real));
  }

  // dout and dlse of a row, or their tangents, 0 where they are not finite. Tells whether one is not 0.
  bool load_grads(const Block& block, int64_t r, const View& of_out, const View& of_lse, Real* dout, Real* dlse) {
    int64_t head = block.head[r], t = block.query[r];
    widen_row(of_out.data, of_out.type, offset_of(p, of_out, batch, head, t), 1, dout, V);
    *dlse = real_at(p, of_lse, batch, head, t);
    bool some = any_not_zero(dout, dout_step) || !(*dlse == 0);
    if (finite_row(dout, dout_step) && is_finite(*dlse)) return some;
    spoiled[r] = 1;
    *dlse = 0;
    memset(dout, 0, V * sizeof(Real));
    return some;
  }

  Real scale_in_range(Real* row) const {
    Factors factors = factors_of(row, D, Real(p.scale));
    scale_row(row, D, factors.before);
    return factors.after;
  }

  // Query, dout and dlse of the rows of a block, and their tangents.
  void load_rows(const Block& block) {
    stretched = false;
    const Real *of_query[kBlockRows], *of_moved[kBlockRows], *of_dout[kBlockRows], *of_dout_moved[kBlockRows];
    memset(query_rows, 0, block.padded * query_step * sizeof(Real));
    memset(query_rows_moved, 0, block.padded * query_step * sizeof(Real));
    memset(dout_rows, 0, block.padded * dout_step * sizeof(Real));
    if (p.dout_moved.data) memset(dout_rows_moved, 0, block.padded * dout_step * sizeof(Real));
    for (int64_t r = 0; r < block.padded; ++r) {
      Real *query = query_rows + r * query_step, *moved = query_rows_moved + r * query_step;
      Real *dout = dout_rows + r * dout_step, *dout_moved = dout_rows_moved + r * dout_step;
      of_query[r] = query;
      of_moved[r] = moved;
      of_dout[r] = dout;
      of_dout_moved[r] = dout_moved;
      dlse[r] = dlse_moved[r] = 0;
      after[r] = after_moved[r] = 1;
      spoiled[r] = 0;
      read[r] = meets_moved[r] = r < block.rows && !p.dquery;
      if (r >= block.rows) continue;
      int64_t head = block.head[r], t = block.query[r];
      take_rows(p, p.query, batch, head, t, 1, D, query, query_step);
      take_rows(p, p.query_moved, batch, head, t, 1, D, moved, query_step);
      after[r] = scale_in_range(query);
      after_moved[r] = scale_in_range(moved);
      stretched |= after[r] != 1 || after_moved[r] != 1;
      spoiled[r] = !finite_row(query, query_step);
      if (p.dquery) read[r] = meets_moved[r] = load_grads(block, r, p.dout, p.dlse, dout, dlse + r);
      if (p.dout_moved.data) read[r] |= load_grads(block, r, p.dout_moved, p.dlse_moved, dout_moved, dlse_moved + r);
      bool fine = finite_row(moved, query_step);
      spoiled[r] |= !fine && meets_moved[r];
      if (spoiled[r]) memset(query, 0, D * sizeof(Real));
      if (spoiled[r] || !fine) memset(moved, 0, D * sizeof(Real));
    }
    pack_transposed(of_query, block.padded, D, nullptr, queries);
    pack_transposed(of_moved, block.padded, D, nullptr, queries_moved);
    if (p.dquery) pack_transposed(of_dout, block.padded, V, nullptr, douts);
    if (p.dout_moved.data) pack_transposed(of_dout_moved, block.padded, V, nullptr, douts_moved);
  }

  // to (keys x N vectors) = rows . columns, or added to what is there.
  template <int N, bool Add>
  INLINE void multiply(const Real* rows, int64_t width, const Real* columns, Real* to) const {
    in_tiles<Order::of_width>(keys, [=]<int M>(Rows<M>, int64_t r) INLINED {
      register_tile<M, N, true, Order::of_width>(rows + r * width, width, columns, kLd, width, [&](F(&acc)[M][N]) {
        for (int i = 0; i < M; ++i)
          for (int j = 0; j < N; ++j) {
            Real* at = to + (r + i) * kLd + j * W;
            store(at, Add ? load(at) + acc[i][j] : acc[i][j]);
          }
      });
    });
  }

  // Weights and their tangents before dropout, and lse', of one vector of rows; its scores and their tangents are
  // there.
  INLINE void weigh(int64_t row, F top) {
    Sum of_weights, of_tangents;
    for (int64_t k = 0; k < keys; ++k) {
      F x = exp_of(load(scores + k * kLd + row) - top);
      of_weights.add(k, x);
      store(weights + k * kLd + row, x);
    }
    F sum = of_weights.total(), inverse = all(Real(1)) / select(sum == F{}, all(Real(1)), sum);
    for (int64_t k = 0; k < keys; ++k) {
      F x = load(weights + k * kLd + row) * inverse;
      of_tangents.add(k, select(x == F{}, F{}, x * load(weights_moved + k * kLd + row)));
      store(weights + k * kLd + row, x);
    }
    F mean = of_tangents.total();
    for (int64_t k = 0; k < keys; ++k) {
      F x = load(weights + k * kLd + row);
      Real* at = weights_moved + k * kLd + row;
      store(at, select(x == F{}, F{}, x * (load(at) - mean)));
    }
    store(lse_moved + row, mean);
    for (int i = 0; i < W; ++i) spoiled[row + i] |= !is_finite(sum[i]) || !is_finite(mean[i]);
  }

  // ds and ds' of one vector of rows, in place of dp and dp'.
  INLINE void pull(int64_t row) {
    Sum of_weights, of_tangents;
    for (int64_t k = 0; k < keys; ++k) {
      int64_t at = k * kLd + row;
      F x = load(weights + at), moved = load(weights_moved + at), dp = load(ds + at), dp_moved = load(ds_moved + at);
      if (p.drops) {
        F factor = load(kept + at);
        store(ds + at, dp = dp * factor);
        store(ds_moved + at, dp_moved = dp_moved * factor);
      }
      of_weights.add(k, select(x == F{}, F{}, x * dp));
      of_tangents.add(k, select(x == F{}, F{}, moved * dp + x * dp_moved));
    }
    F delta = of_weights.total() - load(dlse + row), delta_moved = of_tangents.total() - load(dlse_moved + row);
    for (int64_t k = 0; k < keys; ++k) {
      int64_t at = k * kLd + row;
      F x = load(weights + at), far = load(ds + at) - delta;
      F moved = load(weights_moved + at) * far + x * (load(ds_moved + at) - delta_moved);
      store(ds + at, select(x == F{}, F{}, x * far));
      store(ds_moved + at, select(x == F{}, F{}, moved));
    }
    for (int i = 0; i < W; ++i) spoiled[row + i] |= !is_finite(delta[i]) || !is_finite(delta_moved[i]);
  }

  // A row that is not finite: NaN where it may look, if anything depends on it, and 0 elsewhere.
  void spoil(int64_t row) {
    lse_moved[row] = 0;
    for (int64_t k = 0; k < keys; ++k) {
      int64_t at = k * kLd + row;
      Real x = read[row] && scores[at] != -kInfinity ? kNaN : Real(0);
      weights[at] = weights_moved[at] = ds[at] = ds_moved[at] = x;
      lse_moved[row] += x;
    }
  }

  template <int N>
  void panel(const Block& block, int64_t row, const Allowed* allowed) {
    Panel<N> rows{p, block, row, stretched ? after : nullptr};
    Span span = block.span(row, row + N * W);
    F top[N];
    for (int j = 0; j < N; ++j) top[j] = all(kLowest);
    rows.scores(key, D, queries, 0, keys, span.all_begin > 0 || span.all_end < keys, allowed, 0, scores + row, kLd, top,
                nullptr);
    multiply<N, false>(key, D, queries_moved + row, weights_moved + row);
    if (stretched) {
      multiply<N, false>(key_moved, D, queries + row, ds_moved + row);
      times_rows(weights_moved + row, keys, after_moved + row, N * W);
      times_rows(ds_moved + row, keys, after + row, N * W);
      for (int64_t k = 0; k < keys; ++k)
        for (int64_t r = row; r < row + N * W; ++r) weights_moved[k * kLd + r] += ds_moved[k * kLd + r];
    } else {
      multiply<N, true>(key_moved, D, queries + row, weights_moved + row);
    }
    for (int j = 0; j < N; ++j) weigh(row + j * W, top[j]);
    if (p.drops) rows.dropout(0, keys, kept + row, kLd);
    if (p.dquery) {
      multiply<N, false>(value, V, douts + row, ds + row);
      multiply<N, false>(value_moved, V, douts + row, ds_moved + row);
      if (p.dout_moved.data) multiply<N, true>(value, V, douts_moved + row, ds_moved + row);
      for (int j = 0; j < N; ++j) pull(row + j * W);
    }
    for (int64_t k = 0; k < keys && p.drops; ++k)
      for (int j = 0; j < N; ++j) {
        int64_t at = k * kLd + row + j * W;
        store(weights + at, load(weights + at) * load(kept + at));
        store(weights_moved + at, load(weights_moved + at) * load(kept + at));
      }
    for (int64_t r = row; r < row + N * W; ++r)
      if (spoiled[r] || r >= block.rows) spoil(r);
    const Real *one = p.dquery ? ds_moved : weights_moved, *other = p.dquery ? ds : weights;
    int64_t width = p.dquery ? D : V;
    for (int64_t d = 0; d < width; ++d)
      for (int j = 0; j < N; ++j) store(of_rows + d * kLd + row + j * W, F{});
    F same[N];
    for (int j = 0; j < N; ++j) same[j] = all(Real(1));
    add_product<N, false, true>(width, keys, p.dquery ? key : value, width, one + row, kLd, of_rows + row, kLd, same);
    add_product<N, false, true>(width, keys, p.dquery ? key_moved : value_moved, width, other + row, kLd, of_rows + row,
                                kLd, same);
  }

  // Rows that see a key which is not finite, or which meet its tangent and that is not.
  void note_bad_keys(const Block& block, const Allowed* allowed) {
    uint8_t moved[kBlockRows] = {};
    note_spoiled(p, block, 0, keys, bad, allowed, spoiled);
    note_spoiled(p, block, 0, keys, bad_moved, allowed, moved);
    for (int64_t r = 0; r < block.rows; ++r) spoiled[r] |= moved[r] && meets_moved[r];
  }

  void block(const Block& block) {
    load_rows(block);
    const Allowed* allowed = nullptr;
    bool sees = true;
    if (p.mask_ops) {
      Seen seen = allow(p, block, 0, keys, stack);
      sees = seen != Seen::none;
      allowed = seen == Seen::some ? stack : nullptr;
    }
    if (sees && hides) note_bad_keys(block, allowed);
    int64_t panels = (block.padded + kPanel - 1) / kPanel;
    for (int64_t row = 0; row < block.padded && sees; row += kPanel)
      block.padded - row > W ? panel<2>(block, row, allowed) : panel<1>(block, row, allowed);
    write(block, sees);
    if (!p.dquery || !sees) return;
    Span spans[kBlockRows / kPanel + 1];
    for (int64_t i = 0; i < panels; ++i) spans[i] = {0, keys, 0, keys};
    if (stretched) {
      times_rows(ds_moved, keys, after, block.padded);
      times_rows(ds, keys, after_moved, block.padded);
    }
    add_all_columns(ds_moved, keys, block.padded, spans, panels, 0, query_rows, query_step, dkey);
    add_all_columns(ds, keys, block.padded, spans, panels, 0, query_rows_moved, query_step, dkey);
    add_all_columns(weights_moved, keys, block.padded, spans, panels, 0, dout_rows, dout_step, dvalue);
    if (p.dout_moved.data)
      add_all_columns(weights, keys, block.padded, spans, panels, 0, dout_rows_moved, dout_step, dvalue);
  }

  // dq', or out' and lse', of the rows of a block.
  void write(const Block& block, bool sees) {
    int64_t width = p.dquery ? D : V;
    Real* to[kBlockRows];
    alignas(64) Real factor[kBlockRows];
    for (int64_t r = 0; r < block.padded; ++r) {
      factor[r] = p.dquery ? Real(p.scale) : Real(1);
      if (r >= block.rows) continue;
      int64_t line = (batch * p.heads + block.head[r]) * p.queries + block.query[r];
      to[r] = static_cast<Real*>(p.dquery ? p.dquery : p.out) + line * width;
      if (!sees) memset(to[r], 0, width * sizeof(Real));
      if (!p.dquery) static_cast<Real*>(p.lse)[line] = sees ? lse_moved[r] : Real(0);
    }
    if (sees) unpack_transposed<false>(of_rows, block.rows, width, factor, to);
  }

  void run() {
    for (int64_t i = 0; i < p.blocks(); ++i) block(block_of(p, batch, group, i));
    int64_t line = (batch * p.groups + group) * keys;
    for (int64_t k = 0; k < keys && p.dquery; ++k) {
      memcpy(static_cast<Real*>(p.dkey) + (line + k) * D, dkey + k * query_step, D * sizeof(Real));
      memcpy(static_cast<Real*>(p.dvalue) + (line + k) * V, dvalue + k * dout_step, V * sizeof(Real));
    }
  }
};

int64_t directions_bytes(const Problem& p) { return bytes_of<DirectionsMemory>(p); }

void directions(const Problem& p, int64_t batch, int64_t group) {
  NoDenormals denormals;
  Directions(p, batch, group).run();
}

}  // namespace
}  // namespace ATTENDAX_UNIT
}  // namespace attendax
