// Tokens times a weight: y = x w, or x wᵀ.
//
// Each number of y adds up its products in the order of the depth: kDepth of them in one accumulator, and these sums
// one after the other. So the bits of a token depend neither on the other tokens nor on who computes which (L15).
#pragma once
#include "product.h"

namespace attendax {
namespace ATTENDAX_UNIT {
namespace {

constexpr int kDepth = 256;  // products that are added up by themselves; a panel of a weight then fits the first cache
constexpr int kFewTokens = 4;        // fewer go through a weight as it lies
constexpr int kAhead = 12 * W;       // numbers of each row are asked for before they are read
constexpr int kPackedTokens = 25;    // fewer do not pay for packing a weight
constexpr int kCopiedTokens = 64;    // fewer do not pay for a copy of themselves, nor of a narrow weight
constexpr int kWide = 2048;          // columns: rows of a wider weight fall into few lines of the cache
constexpr int kCopied = kDepth + W;  // numbers between copied rows: they fall into different lines of the cache

INLINE F load_some(const Real* from, int64_t count) {
  if (count >= W) return load(from);
  F x{};
  for (int64_t i = 0; i < count; ++i) x[i] = from[i];
  return x;
}

// The sum of a part of the depth, of up to W columns, joins what is there.
INLINE void add_sum(Real* to, F x, int64_t count, bool first) {
  if (count >= W) {
    store(to, first ? x : load(to) + x);
    return;
  }
  for (int64_t i = 0; i < count; ++i) to[i] = first ? x[i] : to[i] + x[i];
}

// to[p][j] = the weight at depth + p and column + j, filled up with zeros
void pack_panel(const Linear& l, int64_t depth, int64_t deep, int64_t column, int64_t columns, Real* to) {
  const Real* w = static_cast<const Real*>(l.w);
  for (int64_t j = 0; j < kPanel; j += W) {
    int64_t count = least(W, columns - j), p = 0;
    if (!l.turned) {
      for (; p < deep; ++p) store(to + p * kPanel + j, load_some(w + (depth + p) * l.columns + column + j, count));
      continue;
    }
    const Real* from = w + (column + j) * l.depth + depth;
    for (; p < deep; p += W) {
      F x[W];
      for (int64_t i = 0; i < W; ++i) x[i] = i < count ? load_some(from + i * l.depth + p, deep - p) : F{};
      transpose(x);
      for (int64_t i = 0; i < least(W, deep - p); ++i) store(to + (p + i) * kPanel + j, x[i]);
    }
  }
}

// Few tokens times rows of w: blocks of w are turned in registers, and each number of y adds up as in a tile.
template <int M>
void project_few_turned(const Linear& l, int64_t row, int64_t column, int64_t columns) {
  const Real* x = static_cast<const Real*>(l.x) + row * l.depth;
  for (int64_t j = 0; j < columns; j += W) {
    const Real* w = static_cast<const Real*>(l.w) + (column + j) * l.depth;
    int64_t count = least(W, columns - j);
    for (int64_t depth = 0; depth < l.depth; depth += kDepth) {
      int64_t end = least(depth + kDepth, l.depth);
      F sums[M];
      for (int r = 0; r < M; ++r) sums[r] = F{};
      for (int64_t p = depth; p < end; p += W) {
        F block[W];
        for (int64_t i = 0; i < W; ++i) {
          block[i] = i < count ? load_some(w + i * l.depth + p, end - p) : F{};
          __builtin_prefetch(w + i * l.depth + p + kAhead, 0, 2);
        }
        transpose(block);
        auto add = [&](int64_t i) __attribute__((always_inline)) {
          for (int r = 0; r < M; ++r) sums[r] = fma(all(x[r * l.depth + p + i]), block[i], sums[r]);
        };
        if (p + W <= end)
          for (int64_t i = 0; i < W; ++i) add(i);
        else
          for (int64_t i = 0; i < end - p; ++i) add(i);
      }
      for (int r = 0; r < M; ++r)
        add_sum(static_cast<Real*>(l.y) + (row + r) * l.columns + column + j, sums[r], count, depth == 0);
    }
  }
}

// Rows of w one after the other, as they lie: each number of y waits in `sums` for the next.
void project_few(const Linear& l, int64_t row, int64_t rows, int64_t column, int64_t columns, Real* sums) {
  const Real *x = static_cast<const Real*>(l.x) + row * l.depth, *w = static_cast<const Real*>(l.w) + column;
  int64_t ld = rounded_up(columns, W);
  for (int64_t depth = 0; depth < l.depth; depth += kDepth) {
    int64_t end = least(depth + kDepth, l.depth);
    memset(sums, 0, rows * ld * sizeof(Real));
    auto step = [&]<int M>(Rows<M>, int64_t p) __attribute__((always_inline)) {
      for (int64_t r = 0; r < rows; ++r) {
        const Real* factor = x + r * l.depth + p;
        auto add = [&](int64_t j, auto number) __attribute__((always_inline)) {
          F sum = load(sums + r * ld + j);
          for (int i = 0; i < M; ++i) sum = fma(factor[i], number(w + (p + i) * l.columns + j), sum);
          store(sums + r * ld + j, sum);
        };
        int64_t j = 0;
        for (; j + W <= columns; j += W) add(j, [](const Real* from) { return load(from); });
        if (j < columns) add(j, [&](const Real* from) { return load_some(from, columns - j); });
      }
    };
    int64_t p = depth;
    for (; p + 8 <= end; p += 8) step(Rows<8>{}, p);
    for (; p < end; ++p) step(Rows<1>{}, p);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < columns; j += W)
        add_sum(static_cast<Real*>(l.y) + (row + r) * l.columns + column + j, load(sums + r * ld + j), columns - j,
                depth == 0);
  }
}

struct ProjectMemory {
  Real *panel, *tokens;  // of the weight; copies of rows of x

  ProjectMemory(Arena& from, int64_t rows, int64_t columns)
      : panel(from.take<Real>(rows < kFewTokens ? rows * rounded_up(columns, W) : int64_t(kDepth) * kPanel)),
        tokens(from.take<Real>(rows < kCopiedTokens ? 0 : rows * kCopied)) {}
};

// Of tasks of so many rows and columns, or fewer.
int64_t project_bytes(int64_t rows, int64_t columns) {
  return most(bytes_of<ProjectMemory>(rows, columns), bytes_of<ProjectMemory>(least(rows, kFewTokens - 1), columns));
}

// Some rows and columns of y.
void project(const Linear& l, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  NoDenormals guard;
  if (rows < kFewTokens && l.turned) {
    for (int64_t r = row; r < row + rows; ++r) project_few_turned<1>(l, r, column, columns);
    return;
  }
  auto [scratch, tokens] = ProjectMemory(arena.start(), rows, columns);
  if (rows < kFewTokens) {
    project_few(l, row, rows, column, columns, scratch);
    return;
  }
  bool copies = rows >= kCopiedTokens;
  for (int64_t depth = 0; depth < l.depth; depth += kDepth) {
    int64_t deep = least(kDepth, l.depth - depth);
    const Real* x = static_cast<const Real*>(l.x) + row * l.depth + depth;
    for (int64_t r = 0; r < rows && copies; ++r) memcpy(tokens + r * kCopied, x + r * l.depth, deep * sizeof(Real));
    if (copies) x = tokens;
    int64_t x_step = copies ? kCopied : l.depth;
    for (int64_t c = 0; c < columns; c += kPanel) {
      int64_t count = least(kPanel, columns - c), ld = l.columns;
      Real* y = static_cast<Real*>(l.y) + row * l.columns + column + c;
      const Real* panel = static_cast<const Real*>(l.w) + depth * l.columns + column + c;
      if (rows >= (l.columns < kWide ? kCopiedTokens : kPackedTokens) || l.turned || count < kPanel) {
        pack_panel(l, depth, deep, column + c, count, scratch);
        panel = scratch;
        ld = kPanel;
      }
      // While this panel is multiplied, what is written next and the panel that is packed next are asked for.
      const Real* w = static_cast<const Real*>(l.w) + depth * l.columns + column + c + kPanel;
      int64_t ahead = l.turned || c + kPanel >= columns ? 0 : deep, next = 0;
      in_tiles<Order::chain>(rows, [=, &next]<int M>(Rows<M>, int64_t r) INLINED {
        for (int64_t until = (r + M) * ahead / rows; next < until; ++next)
          for (int j = 0; j < 2; ++j) __builtin_prefetch(w + next * l.columns + j * W, 0, 2);
        for (int i = 0; i < M; ++i)
          for (int j = 0; j < 2; ++j) __builtin_prefetch(y + (r + i) * l.columns + j * W, 1, 3);
        register_tile<M, 2, true, Order::chain>(x + r * x_step, x_step, panel, ld, deep, [&](F(&acc)[M][2]) {
          for (int i = 0; i < M; ++i)
            for (int j = 0; j < 2; ++j)
              if (j * W < count) add_sum(y + (r + i) * l.columns + j * W, acc[i][j], count - j * W, depth == 0);
        });
      });
    }
  }
}

}  // namespace
}  // namespace ATTENDAX_UNIT
}  // namespace attendax
