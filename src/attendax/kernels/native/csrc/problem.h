// One call of attention, as the handlers (ffi.cc) give it to the kernels (kernel.cc, once for each instruction set and
// type).
#pragma once
#include <stdint.h>

namespace attendax {

constexpr int kMaxLead = 12;      // axes before (head, token, width)
constexpr int kMaxMaskOps = 24;   // of a mask program
constexpr int kMaxMaskDepth = 6;  // of its stack
constexpr int kMaxModifiers = 6;  // one after the other
constexpr int kBlockRows = 64;    // queries of a block
constexpr int kTileKeys = 96;     // keys of a tile; tiles begin at multiples of it (L15)
constexpr int kSuperKeys = 960;   // keys whose gradients a thread adds up by itself: ten tiles
constexpr int kChunkKeys = 1920;  // keys with a row maximum of their own; chunks are merged in their order (L15)
constexpr int kChunkQueries =
    512;  // queries whose share of dk and dv is added up by itself, before it joins the others

enum class Type : int { f32, f64, f16, bf16, i32, u32, boolean };

// An array in the rank of the scores: leading axes, then heads, rows and columns. Stride 0 repeats. Strides count
// elements.
struct View {
  const void* data = nullptr;
  Type type = Type::f32;
  int64_t lead[kMaxLead] = {};
  int64_t head = 0, row = 0, column = 0;
};

enum class MaskKind : int {
  conjunction,
  disjunction,
  negation,
  window,
  key_lengths,
  query_lengths,
  segments,
  dense,
  blocks
};

// One step of a mask program in postfix order, or one of the intervals that must all hold.
struct MaskOp {
  MaskKind kind = MaskKind::dense;
  bool has_left = false, has_right = false;
  int64_t left = 0, right = 0, offset = 0;  // of blocks: queries and keys of one
  View one, other;                          // traced offset, or lengths; ids of queries and keys; truth values
  View lefts, rights;                       // sides of a window that are data
};

enum class ModifierKind : int { softcap, alibi, relative_bias };

struct Modifier {
  ModifierKind kind = ModifierKind::softcap;
  double cap = 0;
  int64_t offset = 0, radius = 0;
  View array, traced_offset;  // slopes (..., N, 1, 1), or a table (..., N, 1, 2 radius + 1)
  void* gradient = nullptr;   // (batch, N, 1 or 2 radius + 1), or null
};

struct Problem {
  int lead_rank = 0;
  int64_t lead_size[kMaxLead] = {};
  int64_t batch = 1, heads = 1, groups = 1, queries = 0, keys = 0, width = 0, value_width = 0;
  double scale = 1;
  View query, key, value, bias;
  int intervals = 0, mask_ops = 0, modifiers = 0;
  MaskOp *interval = nullptr, *mask = nullptr;
  Modifier* modifier = nullptr;
  int64_t first_query = 0, first_key = 0;  // their positions, where this is a part of a call (L4)
  // Dropout keeps a weight where the number drawn for its pair reaches the threshold (L10).
  bool drops = false, drops_all = false;
  uint32_t threshold = 0;
  double kept_factor = 1;
  View word[2];  // the random key of each head

  // Results of the forward, dense, in the type that is computed in: (batch, heads, queries, .)
  void *out = nullptr, *row_max = nullptr, *row_sum = nullptr, *lse = nullptr;

  // Of the backward: what the forward has found, the cotangents, and the gradients, in the type that is computed in.
  View saved_out, saved_max, saved_sum, dout, dlse;
  void *dquery = nullptr, *dkey = nullptr, *dvalue = nullptr, *dbias = nullptr;
  View dbias_view;               // its strides; 0 along an axis over which it is summed
  double* dbias_sums = nullptr;  // where it is summed over an axis, its numbers meanwhile: of very many, so in double

  // Of directions: the tangents of query, key, value, dout and dlse, without data where they are 0.
  View query_moved, key_moved, value_moved, dout_moved, dlse_moved;

  bool sums_bias_of_rows() const { return dbias_sums && !dbias_view.column; }  // one number for all keys of a row
  int64_t repeat() const { return heads / groups; }
  // A run is rows that follow each other: the queries of a head, or, where these are few, those of all heads of a
  // group.
  bool folded() const { return queries < kBlockRows; }
  int64_t runs() const { return folded() ? 1 : repeat(); }
  int64_t run_rows() const { return folded() ? repeat() * queries : queries; }
  int64_t blocks_of_run() const { return (run_rows() + kBlockRows - 1) / kBlockRows; }
  int64_t blocks() const { return runs() * blocks_of_run(); }
  // Chunks of queries: by the sizes of one group alone, so that dk and dv of a text do not depend on the batch (L15).
  int64_t blocks_of_chunk() const { return kChunkQueries / kBlockRows; }
  int64_t chunks_of_run() const { return (blocks_of_run() + blocks_of_chunk() - 1) / blocks_of_chunk(); }
  int64_t chunks() const { return runs() * chunks_of_run(); }
  int64_t key_chunks() const { return (keys + kChunkKeys - 1) / kChunkKeys; }
  int64_t supers() const { return (keys + kSuperKeys - 1) / kSuperKeys; }
};

// Tokens (rows, depth) times a weight (depth, columns), or, turned, (columns, depth).
struct Linear {
  int64_t rows = 0, depth = 0, columns = 0;
  const void *x = nullptr, *w = nullptr;
  bool turned = false;
  void* y = nullptr;
};

// Waits until every earlier chunk has added its share, and lets the next one go on.
struct Turns {
  void* state = nullptr;
  void (*wait)(void* state, int64_t super) = nullptr;
  void (*pass)(void* state, int64_t super) = nullptr;
  bool first = false;        // whether no chunk has added to these keys before: then the share is the result
  bool whole_block = false;  // whether computing waits, too: the gradient of a bias is added to where others add
};

struct Kernels {
  const char* name;
  void (*forward)(const Problem&, int64_t batch, int64_t group, int64_t block);
  // The same in two steps: the sums of one chunk of the keys, of partial_bytes, and the results from those of all.
  void (*forward_chunk)(const Problem&, int64_t batch, int64_t group, int64_t block, int64_t chunk, void* to);
  void (*forward_join)(const Problem&, int64_t batch, int64_t group, int64_t block, const void* from);
  int64_t (*partial_bytes)(const Problem&);
  void (*backward)(const Problem&, int64_t batch, int64_t group, int64_t chunk, const Turns&);
  void (*directions)(const Problem&, int64_t batch, int64_t group);  // tangents of results, or of gradients
  void (*project)(const Linear&, int64_t row, int64_t rows, int64_t column, int64_t columns);  // a part of the results
  // Scratch memory that a thread needs for any task of a call; of `project`, for so many rows and columns.
  int64_t (*forward_bytes)(const Problem&);
  int64_t (*backward_bytes)(const Problem&);
  int64_t (*directions_bytes)(const Problem&);
  int64_t (*project_bytes)(int64_t rows, int64_t columns);
  bool (*reserve)(int64_t bytes);  // of a thread, before its first task; false if the memory cannot be had
  void (*finish)();                // of a thread, at the end of a call: large scratch memory is given back
};

}  // namespace attendax
