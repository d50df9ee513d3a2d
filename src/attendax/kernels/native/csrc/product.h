// Matrix products. One register tile: acc[i][j] += sum over p of a(i, p) * b[p][j], a broadcast, b in N vectors.
//
// Every number of a result adds up its products one after the other, p upwards, in one accumulator or in pieces: so it
// does not depend on where in a tile it stands, nor on how large the tile is (L15).
#pragma once
#include "lanes.h"

namespace attendax {
namespace ATTENDAX_UNIT {
namespace {

// Products along the width of queries, keys and values, the weights of a row, and its weighted values are added in
// pieces of so many, one piece after the other. XLA adds the products of few queries in 16 lanes: one chain of 64 would
// be off by 1.7 times as much, and of equal products, which are all rounded alike, by 4 times, where twice is allowed
// (L8). So of a wide row every kFar products are added by themselves, too, and a width of at most kPiece in fours.
constexpr int64_t kPiece = 8;
constexpr int64_t kFar = 8 * kPiece;
INLINE int64_t piece_of(int64_t width) { return width > kPiece ? kPiece : kPiece / 2; }

// Pieces of keys end where the number of a key says so, wherever a row begins to see (L15).
INLINE bool ends_piece(int64_t key) { return (key + 1) % kPiece == 0; }

// How the products of a register tile are added: in one chain, in pieces along a width, in pieces of keys.
enum class Order { chain, of_width, of_keys };

template <int M, int N>
INLINE void zero(F (&acc)[M][N]) {
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) acc[i][j] = F{};
}

template <int M, int N>
INLINE void add(F (&to)[M][N], const F (&from)[M][N]) {
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) to[i][j] += from[i][j];
}

// `Along` says whether a(i, p) is a[i * lda + p] (p runs along rows) or a[p * lda + i]. `first` is the key of p = 0.
template <int M, int N, bool Along, Order order, class Finish>
INLINE void register_tile(const Real* a, int64_t lda, const Real* b, int64_t ldb, int64_t depth, const Finish& finish,
                          int64_t first = 0) {
  F acc[M][N];
  int64_t p = 0;
  auto step = [&]() INLINED {
    F row[N];
    for (int j = 0; j < N; ++j) row[j] = load(b + p * ldb + j * W);
    for (int i = 0; i < M; ++i) {
      F x = all(Along ? a[i * lda + p] : a[p * lda + i]);
      for (int j = 0; j < N; ++j) acc[i][j] = fma(x, row[j], acc[i][j]);
    }
    ++p;
  };
  auto add_until = [&](int64_t end) INLINED {
    zero(acc);
    if (order != Order::chain && end - p == kPiece) {  // a loop would cost a share of its time
#pragma GCC unroll 8
      for (int i = 0; i < kPiece; ++i) step();
      return;
    }
    while (p + 2 <= end) {
      step();
      step();
    }
    if (p < end) step();
  };
  if constexpr (order == Order::chain) {
    add_until(depth);
    finish(acc);
  } else if constexpr (order == Order::of_keys) {
    F sum[M][N];
    zero(sum);
    int64_t end = kPiece - first % kPiece;
    while (p < depth) {
      add_until(least(depth, end));
      add(sum, acc);
      end += kPiece;
    }
    finish(sum);
  } else {
    F sum[M][N], whole[M][N];
    zero(sum);
    const int64_t piece = piece_of(depth);
    while (p < depth) {
      if (p && p % kFar == 0) {
        if (p == kFar) zero(whole);
        add(whole, sum);
        zero(sum);
      }
      add_until(least(depth, p + piece));
      add(sum, acc);
    }
    if (depth > kFar) add(sum, whole);
    finish(sum);
  }
}

template <int M>
struct Rows {};

// Calls f(Rows<M>, first row) for register tiles that cover `rows`: full ones, then of four rows, then of one. A tile
// of one row takes as long as one of four: where four and four are nearer to the end than a full tile, they take its
// place. f gets its own copy of what it uses: where it stores, the compiler need not read that again.
template <int M, class Body>
NOINLINE void tiles_of(int64_t row, int64_t end, Body body) {
  for (; row < end; row += M) body(Rows<M>{}, row);
}
template <Order order, class Body>
INLINE void in_tiles(int64_t rows, const Body& body) {
  constexpr int full_rows = order == Order::chain ? kChainRows : kRows;
  int64_t rest = rows % full_rows, full = rows - rest;
  if (full && (rest + full_rows) % 4 < rest % 4) full -= full_rows;
  int64_t fours = rows - (rows - full) % 4;
  if (full) tiles_of<full_rows>(0, full, body);
  if (full < fours) tiles_of<4>(full, fours, body);
  if (fours < rows) tiles_of<1>(fours, rows, body);
}

// c (rows x N vectors) = c * factor + a b, a factor for each lane; without one, c + a b. What is there is added to the
// sum of a tile, not the tile to it number by number: two short sums round less than one long one (L8). With a factor
// the products are of weights and values, from the key `first` on.
template <int N, bool Along, bool Scaled>
INLINE void add_product(int64_t rows, int64_t depth, const Real* a, int64_t lda, const Real* b, int64_t ldb, Real* c,
                        int64_t ldc, const F* factor, int64_t first = 0) {
  constexpr Order order = Scaled ? Order::of_keys : Order::chain;
  in_tiles<order>(rows, [=]<int M>(Rows<M>, int64_t row) INLINED {
    Real* to = c + row * ldc;
    register_tile<M, N, Along, order>(
        a + row * (Along ? lda : 1), lda, b, ldb, depth,
        [&](F(&acc)[M][N]) {
          for (int i = 0; i < M; ++i)
            for (int j = 0; j < N; ++j) {
              Real* at = to + i * ldc + j * W;
              if constexpr (Scaled)
                store(at, fma(load(at), factor[j], acc[i][j]));
              else
                store(at, load(at) + acc[i][j]);
            }
        },
        first);
  });
}

// What a query is multiplied with before its products, and its products after that; together the scale.
//
// `after` is 1, but of a row whose numbers times the scale would leave the range of normal numbers: there it is a power
// of two, so the product is exact, and the row has the same bits as if there were no such range (L7, L8, L15).
struct Factors {
  Real before, after;
};

constexpr int kLowExponent = -16,
              kHighExponent = kDouble ? 1022 : 126;  // exponents of the largest number of a row, scaled
constexpr int kMostRaised = kDouble ? 1000 : 120;    // what a row is raised or lowered by, at the most

Factors factors_of(const Real* row, int64_t width, Real scale) {
  F top{};
  int64_t d = 0;
  for (; d + W <= width; d += W) top = larger(larger(load(row + d), -load(row + d)), top);
  Real largest = 0;
  for (int i = 0; i < W; ++i) largest = top[i] > largest ? top[i] : largest;
  for (; d < width; ++d) {
    Real x = row[d] < 0 ? -row[d] : row[d];
    largest = x > largest ? x : largest;
  }
  Real scaled = largest * (scale < 0 ? -scale : scale);
  constexpr Real low = Real(1) / (1 << -kLowExponent), high = -kLowest / 4;
  if ((scaled >= low && scaled <= high) || largest == 0 || scale == 0 || !(largest - largest == 0)) return {scale, 1};
  int one, other;
  frexp(double(largest), &one);
  frexp(double(scale), &other);
  int by = scaled < low ? int(least(kLowExponent - one - other, kMostRaised))
                        : int(most(kHighExponent - one - other, -kMostRaised));
  return {Real(ldexp(double(scale), by)), Real(ldexp(1.0, -by))};
}

// to[column * kLd + row] = factor * from[row][column], for `rows` rows filled up with zeros to whole vectors; a factor
// for each row where `factors` has some.
void pack_transposed(const Real* const* from, int64_t rows, int64_t columns, const Real* factors, Real* to) {
  static const Real zeros[W] = {};
  for (int64_t row = 0; row < rows; row += W) {
    int64_t c = 0;
    for (; c + W <= columns; c += W) {
      F x[W];
      for (int i = 0; i < W; ++i)
        x[i] = load(row + i < rows ? from[row + i] + c : zeros) * (factors ? factors[row + i] : Real(1));
      transpose(x);
      for (int i = 0; i < W; ++i) store(to + (c + i) * kLd + row, x[i]);
    }
    for (; c < columns; ++c)
      for (int i = 0; i < W; ++i)
        to[c * kLd + row + i] = row + i < rows ? from[row + i][c] * (factors ? factors[row + i] : Real(1)) : Real(0);
  }
}

// to[row][column] = from[column * kLd + row] * factor[row], or added to what is there; no result is -0
template <bool Add>
void unpack_transposed(const Real* from, int64_t rows, int64_t columns, const Real* factor, Real* const* to) {
  for (int64_t row = 0; row < rows; row += W) {
    int64_t c = 0, n = least(W, rows - row);
    F f = load(factor + row);
    for (; c + W <= columns; c += W) {
      F x[W];
      for (int i = 0; i < W; ++i) x[i] = load(from + (c + i) * kLd + row) * f + F{};
      transpose(x);
      for (int i = 0; i < n; ++i) store(to[row + i] + c, Add ? load(to[row + i] + c) + x[i] : x[i]);
    }
    for (; c < columns; ++c)
      for (int i = 0; i < n; ++i) {
        Real x = from[c * kLd + row + i] * f[i] + Real(0);
        to[row + i][c] = Add ? to[row + i][c] + x : x;
      }
  }
}

}  // namespace
}  // namespace ATTENDAX_UNIT
}  // namespace attendax
