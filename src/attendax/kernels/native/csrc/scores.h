// From products to scores (L2): the modifiers, the bias, the mask; and which weights dropout keeps (L10).
#pragma once
#include "rows.h"

namespace attendax {
namespace ATTENDAX_UNIT {
namespace {

// Queries [row, row + N * W) of a block, beside some keys. Scores lie keys in rows, queries in lanes, `ld` apart.
template <int N>
struct Panel {
  const Problem& p;
  const Block& block;
  int64_t row;
  const Real* after = nullptr;  // what products are multiplied with (Factors), of each row of the block; null: 1

  INLINE int64_t head(int j, int i) const { return block.head[row + j * W + i]; }
  INLINE int64_t query(int j, int i) const { return block.query[row + j * W + i]; }

  // Products of keys and queries, NaN where they are not finite; -inf for what the intervals hide, where `Masked`, and
  // for what the program hides, where `allowed` is given, with the key that it begins at. `top` rises to the maximum of
  // each lane.
  template <bool Masked, bool Program>
  void products(const Real* keys_at, int64_t step, const Real* queries, int64_t key, int64_t keys,
                const Allowed* allowed, int64_t first_allowed, Real* scores, int64_t ld, F (&top)[N]) const {
    I first[N], last[N];
    for (int j = 0; j < N; ++j) {
      first[j] = load_ints(block.first + row + j * W);
      last[j] = load_ints(block.last + row + j * W);
    }
    in_tiles<Order::of_width>(keys, [=, &top, this]<int M>(Rows<M>, int64_t r) INLINED {
      register_tile<M, N, true, Order::of_width>(
          keys_at + r * step, step, queries + row, kLd, p.width, [&](F(&acc)[M][N]) {
            F highest[N];  // what is stored might lie where `top` does, for all that the compiler knows
            for (int j = 0; j < N; ++j) highest[j] = top[j];
            for (int i = 0; i < M; ++i)
              for (int j = 0; j < N; ++j) {
                F x = nan_unless_finite(acc[i][j]);
                if constexpr (Masked) x = inside(key + r + i, first[j], last[j], x);
                if constexpr (Program) x = where_allowed(*allowed, first_allowed + r + i, j, x);
                highest[j] = larger(x, highest[j]);
                store(scores + (r + i) * ld + j * W, x);
              }
            for (int j = 0; j < N; ++j) top[j] = highest[j];
          });
    });
  }

  INLINE F inside(int64_t key, I first, I last, F x) const {
    I at = all_ints(Int(key));
    return select((at >= first) & (at < last), x, all(-kInfinity));
  }

  INLINE F where_allowed(const Allowed& allowed, int64_t k, int j, F x) const {
    typedef uint8_t Bytes __attribute__((vector_size(W), aligned(1), may_alias));
    Bytes bytes = *reinterpret_cast<const Bytes*>(&allowed.at[k][row + j * W]);
    return select(__builtin_convertvector(bytes, I) != 0, x, all(-kInfinity));
  }

  INLINE int64_t offset_for(const Modifier& m, int j, int i) const {
    return m.traced_offset.data ? integer_at(p, m.traced_offset, block.batch, head(j, i), query(j, i), 0) : m.offset;
  }

  // How far a key is behind a query, as a floating number: the sum does not wrap around (L4).
  INLINE Real distance(const Modifier& m, int j, int i, int64_t key) const {
    return Real(query(j, i) + p.first_query - key - p.first_key) + Real(offset_for(m, j, i));
  }

  // The column of a table for a key that is so far ahead of a query.
  INLINE static int64_t column(const Modifier& m, int64_t ahead) {
    return least(most(ahead, -m.radius), m.radius) + m.radius;
  }
  INLINE int64_t ahead(const Modifier& m, int j, int i, int64_t key) const {
    return key + p.first_key - query(j, i) - p.first_query - offset_for(m, j, i);
  }

  // Whether the lanes are queries of one head that follow each other: then a diagonal of the scores has one distance.
  INLINE bool in_order() const {
    int64_t lanes = least(N * W, block.rows - row);
    return block.head[row] == block.head[row + lanes - 1] &&
           block.query[row + lanes - 1] - block.query[row] == lanes - 1;
  }

  // `slope` is null, or what the derivative of the modifiers is multiplied into.
  void softcap(const Modifier& m, int64_t keys, Real* scores, int64_t ld, Real* slope) const {
    Real cap = Real(m.cap), inverse = Real(1 / m.cap);
    for (int64_t k = 0; k < keys; ++k)
      for (int j = 0; j < N; ++j) {
        Real* at = scores + k * ld + j * W;
        F t = tanh_of(load(at) * inverse);
        if (slope) {
          Real* to = slope + k * ld + j * W;
          store(to, load(to) * (all(Real(1)) - t * t));
        }
        store(at, t * cap);
      }
  }

  void alibi(const Modifier& m, int64_t key, int64_t keys, Real* scores, int64_t ld) const {
    for (int j = 0; j < N; ++j) {
      F slopes{}, start{};
      bool exact =
          p.first_key + p.keys < 1 << 22;  // positions and offsets so small that their sums are exact in any order
      for (int i = 0; i < W; ++i) {
        int64_t offset = offset_for(m, j, i);
        slopes[i] = real_at(p, m.array, block.batch, head(j, i), 0);
        start[i] = distance(m, j, i, 0);
        exact &= offset > -(1 << 22) && offset < 1 << 22 && start[i] < Real(1 << 22);
      }
      for (int64_t k = 0; k < keys; ++k) {
        Real* at = scores + k * ld + j * W;
        F far = start - all(Real(key + k));
        for (int i = 0; i < W && !exact; ++i) far[i] = distance(m, j, i, key + k);
        store(at, load(at) - slopes * larger(far, -far));
      }
    }
  }

  void relative_bias(const Modifier& m, int64_t key, int64_t keys, Real* scores, int64_t ld) const {
    Real diagonal[kTileKeys + kPanel];
    bool ordered = in_order();
    int64_t table = offset_of(p, m.array, block.batch, head(0, 0), 0), first = ahead(m, 0, 0, key);
    for (int64_t n = 0; n < keys + N * W - 1 && ordered; ++n)  // of query `lane` and key `k`: n = lane - k + keys - 1
      diagonal[n] = number_at(m.array.data, m.array.type, table + column(m, first + keys - 1 - n) * m.array.column);
    for (int64_t k = 0; k < keys; ++k)
      for (int j = 0; j < N; ++j) {
        Real* at = scores + k * ld + j * W;
        F added{};
        if (ordered)
          added = load(diagonal + j * W - k + keys - 1);
        else
          for (int i = 0; i < W; ++i)
            added[i] = number_at(m.array.data, m.array.type,
                                 offset_of(p, m.array, block.batch, head(j, i), 0) +
                                     column(m, ahead(m, j, i, key + k)) * m.array.column);
        store(at, load(at) + added);
      }
  }

  // Bias of W keys from `key` on, for each of them the lanes of a vector, whose rows begin at `rows`.
  INLINE void bias_of(const int64_t (&rows)[W], int64_t key, int64_t keys, F (&b)[W]) const {
    for (int i = 0; i < W; ++i) {
      int64_t from = rows[i] + key * p.bias.column;
      if (keys == W && p.bias.column == 1 && p.bias.type == kOwnType) {
        b[i] = load(static_cast<const Real*>(p.bias.data) + from);
      } else {
        Real numbers[W] = {};
        widen_row(p.bias.data, p.bias.type, from, p.bias.column, numbers, keys);
        b[i] = load(numbers);
      }
    }
    transpose(b);
  }

  // Bias and masks on modified scores. A bias of -inf forbids (L5); a sum beyond the range stays at its end (L7); +inf
  // and NaN become NaN (L6).
  void finish(int64_t key, int64_t keys, bool masked, const Allowed* allowed, int64_t first_allowed, Real* scores,
              int64_t ld, F (&top)[N]) const {
    const bool biased = p.bias.data;
    for (int j = 0; j < N; ++j) {
      I first = load_ints(block.first + row + j * W), last = load_ints(block.last + row + j * W);
      int64_t rows[W];
      for (int i = 0; i < W && biased; ++i) rows[i] = offset_of(p, p.bias, block.batch, head(j, i), query(j, i));
      F highest = top[j];
      for (int64_t k = 0; k < keys; k += W) {
        int64_t n = least(W, keys - k);
        F b[W];
        if (biased) bias_of(rows, key + k, n, b);
        auto one = [&](int l) INLINED {
          Real* at = scores + (k + l) * ld + j * W;
          F x = load(at);
          if (biased) {
            F y = larger(all(kLowest), x + nan_unless_finite(b[l]));
            x = select(b[l] == -kInfinity, all(-kInfinity), smaller(all(-kLowest), y));
          }
          if (masked) x = inside(key + k + l, first, last, x);
          if (allowed) x = where_allowed(*allowed, first_allowed + k + l, j, x);
          highest = larger(x, highest);
          store(at, x);
        };
        if (n == W && !masked && !allowed)  // known for all keys but the last: without a branch, and in registers
#pragma GCC unroll 16
          for (int l = 0; l < W; ++l) one(l);
        else
          for (int l = 0; l < n; ++l) one(l);
      }
      top[j] = highest;
    }
  }

  // Products times what their row is multiplied with after them (Factors); -inf stays.
  void stretch(int64_t keys, Real* scores, int64_t ld, F (&top)[N]) const {
    for (int64_t k = 0; k < keys; ++k)
      for (int j = 0; j < N; ++j) {
        Real* at = scores + k * ld + j * W;
        F x = load(at);
        x = select(x == -kInfinity, x, nan_unless_finite(x * load(after + row + j * W)));
        top[j] = larger(x, top[j]);
        store(at, x);
      }
  }

  // The scores of keys [key, key + keys), -inf where hidden; `top` rises to their maximum.
  // `slope`: null, or where the derivative of the modifiers goes. `allowed`: null, or the program's tile; `first` its
  // key.
  void scores(const Real* keys_at, int64_t step, const Real* queries, int64_t key, int64_t keys, bool masked,
              const Allowed* allowed, int64_t first, Real* to, int64_t ld, F (&top)[N], Real* slope) const {
    if (after && p.modifiers == 0 && !p.bias.data) {
      F of_products[N];
      for (int j = 0; j < N; ++j) of_products[j] = all(kLowest);
      Panel{p, block, row}.scores(keys_at, step, queries, key, keys, masked, allowed, first, to, ld, of_products,
                                  nullptr);
      stretch(keys, to, ld, top);
      return;
    }
    if (p.modifiers == 0 && !p.bias.data) {
      if (allowed)
        products<true, true>(keys_at, step, queries, key, keys, allowed, first, to, ld, top);
      else if (masked)
        products<true, false>(keys_at, step, queries, key, keys, allowed, first, to, ld, top);
      else
        products<false, false>(keys_at, step, queries, key, keys, allowed, first, to, ld, top);
      return;
    }
    F unused[N];
    for (int j = 0; j < N; ++j) unused[j] = all(kLowest);
    products<false, false>(keys_at, step, queries, key, keys, nullptr, 0, to, ld, unused);
    if (after) stretch(keys, to, ld, unused);
    for (int64_t k = 0; k < keys && slope; ++k)
      for (int j = 0; j < N; ++j) store(slope + k * ld + j * W, all(Real(1)));
    for (int n = 0; n < p.modifiers; ++n) {
      const Modifier& m = p.modifier[n];
      if (m.kind == ModifierKind::softcap) softcap(m, keys, to, ld, slope);
      if (m.kind == ModifierKind::alibi) alibi(m, key, keys, to, ld);
      if (m.kind == ModifierKind::relative_bias) relative_bias(m, key, keys, to, ld);
    }
    finish(key, keys, masked, allowed, first, to, ld, top);
  }

  // What dropout multiplies weights by: 0, or kept_factor. `to` is laid out as scores are.
  void dropout(int64_t key, int64_t keys, Real* to, int64_t ld) const;
};

// Threefry-2x32 (Salmon et al. 2011), its first word: of a counter (query, key) under the key of a head.
INLINE U threefry(U one, U other, U i, U j) {
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  U schedule[3] = {one, other, one ^ other ^ (0x1BD11BDAu - U{})};
  U a = i + schedule[0], b = j + schedule[1];
  for (int group = 0; group < 5; ++group) {
    for (int round = 0; round < 4; ++round) {
      int bits = kRotations[group % 2][round];
      a += b;
      b = (b << bits) | (b >> (32 - bits));
      b ^= a;
    }
    a += schedule[(group + 1) % 3];
    b += schedule[(group + 2) % 3] + uint32_t(group + 1);
  }
  return a;
}

template <int N>
void Panel<N>::dropout(int64_t key, int64_t keys, Real* to, int64_t ld) const {
  for (int j = 0; j < N; ++j) {
    U one, other, i;
    for (int l = 0; l < W; ++l) {
      one[l] = uint32_t(integer_at(p, p.word[0], block.batch, head(j, l), 0, 0));
      other[l] = uint32_t(integer_at(p, p.word[1], block.batch, head(j, l), 0, 0));
      i[l] = uint32_t(query(j, l) + p.first_query);
    }
    for (int64_t k = 0; k < keys; ++k) {
      U drawn = threefry(one, other, i, uint32_t(key + k + p.first_key) - U{});
      I kept = __builtin_convertvector(drawn >= p.threshold, I);
      store(to + k * ld + j * W, p.drops_all ? F{} : select(kept, all(Real(p.kept_factor)), F{}));
    }
  }
}

}  // namespace
}  // namespace ATTENDAX_UNIT
}  // namespace attendax
