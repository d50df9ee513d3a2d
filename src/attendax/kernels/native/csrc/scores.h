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

  INLINE int64_t head(int j, int i) const { return block.head[row + j * W + i]; }
  INLINE int64_t query(int j, int i) const { return block.query[row + j * W + i]; }

  INLINE bool plain() const { return p.modifiers == 0 && !p.bias.data; }

  // Products of keys and queries, NaN where they are not finite; where `Masked`, -inf for what the intervals hide.
  // `top` becomes the maximum of each lane.
  template <bool Masked>
  void products(const Real* keys_at, int64_t step, const Real* queries, int64_t key, int64_t keys, Real* scores,
                int64_t ld, F (&top)[N]) const {
    I first[N], last[N];
    for (int j = 0; j < N; ++j) {
      first[j] = load_ints(block.first + row + j * W);
      last[j] = load_ints(block.last + row + j * W);
    }
    in_tiles(keys, [&]<int M>(Rows<M>, int64_t r) NOINLINE {
      register_tile<M, N, true>(
          keys_at + r * step, step, queries + row, kLd, p.width, [](F(&acc)[M][N]) { zero(acc); },
          [&](F(&acc)[M][N]) {
            for (int i = 0; i < M; ++i)
              for (int j = 0; j < N; ++j) {
                F x = nan_unless_finite(acc[i][j]);
                if constexpr (Masked) {
                  I at = all_ints(Int(key + r + i));
                  x = select((at >= first[j]) & (at < last[j]), x, all(-kInfinity));
                }
                top[j] = larger(x, top[j]);
                store(scores + (r + i) * ld + j * W, x);
              }
          });
    });
  }

  // -inf for what the program hides; `top` is the maximum of what is left.
  void hide(const Allowed& allowed, int64_t first, int64_t keys, Real* scores, int64_t ld, F (&top)[N]) const {
    typedef uint8_t Bytes __attribute__((vector_size(W), aligned(1), may_alias));
    for (int64_t k = 0; k < keys; ++k)
      for (int j = 0; j < N; ++j) {
        Bytes bytes = *reinterpret_cast<const Bytes*>(&allowed.at[first + k][row + j * W]);
        Real* at = scores + k * ld + j * W;
        F x = select(__builtin_convertvector(bytes, I) != 0, load(at), all(-kInfinity));
        top[j] = larger(x, top[j]);
        store(at, x);
      }
  }

  INLINE int64_t offset_for(const Modifier& m, int j, int i) const {
    return m.traced_offset.data ? integer_at(p, m.traced_offset, block.batch, head(j, i), query(j, i), 0) : m.offset;
  }

  // How far a key is behind a query, as a floating number: the sum does not wrap around (L4).
  INLINE Real distance(const Modifier& m, int j, int i, int64_t key) const {
    return Real(query(j, i) + p.first_query - key - p.first_key) + Real(offset_for(m, j, i));
  }

  // One modifier on scores of keys from `key` on. `slope` of a softcap: its derivative, multiplied into what is there.
  void modify(const Modifier& m, int64_t key, int64_t keys, Real* scores, int64_t ld, Real* slope) const {
    Real cap = Real(m.cap);
    for (int j = 0; j < N; ++j) {
      F slopes{}, start{};
      int64_t base[W], table[W];
      bool exact = true;  // whether positions and offsets are small enough for their sums in any order
      for (int i = 0; i < W && m.kind != ModifierKind::softcap; ++i) {
        int64_t offset = offset_for(m, j, i);
        slopes[i] = m.kind == ModifierKind::alibi ? real_at(p, m.array, block.batch, head(j, i), 0) : Real(0);
        start[i] = distance(m, j, i, 0);
        exact &= offset > -(1 << 22) && offset < 1 << 22 && start[i] < Real(1 << 22) && p.first_key + p.keys < 1 << 22;
        table[i] = offset_of(p, m.array, block.batch, head(j, i), 0);
        base[i] = p.first_key - query(j, i) - p.first_query - offset;
      }
      for (int64_t k = 0; k < keys; ++k) {
        Real* at = scores + k * ld + j * W;
        F x = load(at);
        if (m.kind == ModifierKind::softcap) {
          F t = tanh_of(x / cap);
          if (slope) {
            Real* to = slope + k * ld + j * W;
            store(to, load(to) * (all(Real(1)) - t * t));
          }
          x = t * cap;
        } else if (m.kind == ModifierKind::alibi) {
          F far{};
          if (exact)
            far = start - all(Real(key + k));
          else
            for (int i = 0; i < W; ++i) far[i] = distance(m, j, i, key + k);
          x = x - slopes * larger(far, -far);
        } else {
          F added{};
          for (int i = 0; i < W; ++i) {
            int64_t c = least(most(base[i] + key + k, -m.radius), m.radius) + m.radius;
            added[i] = number_at(m.array.data, m.array.type, table[i] + c * m.array.column);
          }
          x = x + added;
        }
        store(at, x);
      }
    }
  }

  // Adds the bias. -inf forbids (L5); a sum beyond the range stays at its end (L7); +inf and NaN become NaN (L6).
  void add_bias(int64_t key, int64_t keys, Real* scores, int64_t ld) const {
    for (int j = 0; j < N; ++j) {
      int64_t from[W];
      for (int i = 0; i < W; ++i)
        from[i] = offset_of(p, p.bias, block.batch, head(j, i), query(j, i)) + key * p.bias.column;
      for (int64_t k = 0; k < keys; k += W) {
        int64_t n = least(W, keys - k);
        F b[W];
        for (int i = 0; i < W; ++i) {
          if (n == W && p.bias.column == 1 && p.bias.type == kOwnType) {
            b[i] = load(static_cast<const Real*>(p.bias.data) + from[i] + k);
          } else {
            Real numbers[W] = {};
            widen_row(p.bias.data, p.bias.type, from[i] + k * p.bias.column, p.bias.column, numbers, n);
            b[i] = load(numbers);
          }
        }
        transpose(b);
        for (int l = 0; l < n; ++l) {
          Real* at = scores + (k + l) * ld + j * W;
          F y = load(at) + nan_unless_finite(b[l]);
          y = smaller(all(-kLowest), larger(all(kLowest), y));
          store(at, select(b[l] == -kInfinity, all(-kInfinity), y));
        }
      }
    }
  }

  // Where lanes see keys beyond their interval, -inf, after what was computed for all; `top` is the maximum of the
  // rest.
  void hide_by_interval(int64_t key, int64_t keys, Real* scores, int64_t ld, F (&top)[N]) const {
    for (int j = 0; j < N; ++j) {
      I first = load_ints(block.first + row + j * W), last = load_ints(block.last + row + j * W);
      for (int64_t k = 0; k < keys; ++k) {
        Real* at = scores + k * ld + j * W;
        I place = all_ints(Int(key + k));
        F x = select((place >= first) & (place < last), load(at), all(-kInfinity));
        top[j] = larger(x, top[j]);
        store(at, x);
      }
    }
  }

  // The scores of keys [key, key + keys), -inf where hidden; `top` rises to their maximum.
  // `slope`: null, or where the derivative of the modifiers goes. `allowed`: null, or the program's tile; `first` its
  // key.
  void scores(const Real* keys_at, int64_t step, const Real* queries, int64_t key, int64_t keys, bool masked,
              const Allowed* allowed, int64_t first, Real* to, int64_t ld, F (&top)[N], Real* slope) const {
    if (plain() && !allowed) {
      if (masked)
        products<true>(keys_at, step, queries, key, keys, to, ld, top);
      else
        products<false>(keys_at, step, queries, key, keys, to, ld, top);
      return;
    }
    F unused[N];
    for (int j = 0; j < N; ++j) unused[j] = all(kLowest);
    if (plain()) {
      if (masked)
        products<true>(keys_at, step, queries, key, keys, to, ld, unused);
      else
        products<false>(keys_at, step, queries, key, keys, to, ld, unused);
      hide(*allowed, first, keys, to, ld, top);
      return;
    }
    products<false>(keys_at, step, queries, key, keys, to, ld, unused);
    for (int64_t k = 0; k < keys && slope; ++k)
      for (int j = 0; j < N; ++j) store(slope + k * ld + j * W, all(Real(1)));
    for (int n = 0; n < p.modifiers; ++n) modify(p.modifier[n], key, keys, to, ld, slope);
    if (p.bias.data) add_bias(key, keys, to, ld);
    hide_by_interval(key, keys, to, ld, allowed ? unused : top);
    if (allowed) hide(*allowed, first, keys, to, ld, top);
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
