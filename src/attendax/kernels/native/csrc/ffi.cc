// Handlers for XLA, on the C interface of its FFI: they read buffers and attributes into a Problem, choose the
// instruction set, and share the work among threads.
//
// Arguments and attributes come in the order in which `program.py` writes them; nothing but that file calls these
// handlers.
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "handler.h"
#include "problem.h"

namespace attendax {

#if defined(__x86_64__)
#define ATTENDAX_SETS(X) X(avx512) X(avx2)  // best first
#else
#define ATTENDAX_SETS(X) X(neon)
#endif

#define DECLARE(set) extern const Kernels kernels_##set##_float, kernels_##set##_double;
ATTENDAX_SETS(DECLARE)
#undef DECLARE

namespace {

// What the processor, and the system that saves its registers, have.
bool runs_here([[maybe_unused]] const std::string& set) {
#if defined(__x86_64__)
  unsigned a, b, c, d, low, high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return false;  // OSXSAVE: xgetbv may be asked
  bool fma = c >> 12 & 1, f16c = c >> 29 & 1;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  bool avx2 = fma && f16c && (b >> 5 & 1) && (low & 0x6) == 0x6;
  if (set == "avx2") return avx2;
  constexpr unsigned f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  return avx2 && (b & f_dq_bw_vl) == f_dq_bw_vl && (low & 0xE6) == 0xE6;
#else
  return true;
#endif
}

struct Sets {
  const Kernels *of_float = nullptr, *of_double = nullptr;
};

// The best set that runs here; ATTENDAX_ISA names another. None where none runs.
const Sets& sets() {
  static const Sets chosen = [] {
    const char* wanted = std::getenv("ATTENDAX_ISA");
#define TRY(set)                                                               \
  if ((!wanted || !*wanted || std::string(wanted) == #set) && runs_here(#set)) \
    return Sets{&kernels_##set##_float, &kernels_##set##_double};
    ATTENDAX_SETS(TRY)
#undef TRY
    return Sets{};
  }();
  return chosen;
}

// ---------------------------------------------------------------------------------------------------------------------
// Work on several threads

struct Pool {
  const XLA_FFI_Api* api;
  XLA_FFI_ExecutionContext* ctx;

  int64_t threads() const {
    int64_t count = 0;
    XLA_FFI_ThreadPool_NumThreads_Args args = {XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, nullptr, ctx, &count};
    if (XLA_FFI_Error* error = api->XLA_FFI_ThreadPool_NumThreads(&args)) {
      forget(error);
      return 1;
    }
    return count;
  }
  bool schedule(XLA_FFI_Task* task, void* data) const {
    XLA_FFI_ThreadPool_Schedule_Args args = {XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, nullptr, ctx, task, data};
    XLA_FFI_Error* error = api->XLA_FFI_ThreadPool_Schedule(&args);
    if (error) forget(error);
    return !error;
  }
  void forget(XLA_FFI_Error* error) const {
    XLA_FFI_Error_Destroy_Args args = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
    api->XLA_FFI_Error_Destroy(&args);
  }
};

// Tasks 0 .. count - 1, begun in this order. Each thread needs so many bytes of scratch memory.
struct Work {
  std::atomic<int64_t> next{0}, done{0};
  int64_t count = 0, bytes = 0;
  const Kernels* kernels = nullptr;
  void (*run_one)(const void* body, int64_t i) = nullptr;
  const void* body = nullptr;

  // The caller has its memory already.
  void run() {
    int64_t mine = 0;
    for (int64_t i; (i = next.fetch_add(1)) < count; ++mine) run_one(body, i);
    kernels->finish();
    if (mine) done.fetch_add(mine);  // if not, the call may be over: nothing of it may be looked at
  }
  // A helper that comes too late, or for which there is no memory, leaves the tasks to the others.
  void help() {
    if (next.load() < count && kernels->reserve(bytes)) run();
  }
};

// Runs body(0 .. count - 1) on this thread and on those of XLA's pool that are free. This thread waits only for what
// another has begun, never for a thread to come: so it cannot wait for ever, whoever occupies the pool. Once a helper
// has the address of `body`, nothing here may throw.
template <class Body>
void share(const Pool& pool, int64_t count, int64_t helpers, const Kernels& kernels, int64_t bytes, const Body& body) {
  if (count <= 0) return;
  std::shared_ptr<Work> work;
  if (helpers > 0 && count > 1) work = std::make_shared<Work>();
  if (!kernels.reserve(bytes)) throw std::bad_alloc();
  if (!work) {
    for (int64_t i = 0; i < count; ++i) body(i);
    kernels.finish();
    return;
  }
  work->count = count;
  work->bytes = bytes;
  work->kernels = &kernels;
  work->body = &body;
  work->run_one = [](const void* body, int64_t i) { (*static_cast<const Body*>(body))(i); };
  for (int64_t i = 0; i < std::min(helpers, count - 1); ++i) {
    auto* held = new (std::nothrow) std::shared_ptr<Work>(work);
    auto task = [](void* data) {
      auto* held = static_cast<std::shared_ptr<Work>*>(data);
      (*held)->help();
      delete held;
    };
    if (!held || !pool.schedule(task, held)) {
      delete held;
      break;
    }
  }
  work->run();
  for (int64_t spins = 0; work->done.load() < count; ++spins)
    if (spins > 2000) std::this_thread::yield();
}

// ---------------------------------------------------------------------------------------------------------------------
// From a call frame to a Problem

struct Reader {
  XLA_FFI_CallFrame* frame;
  int64_t argument = 0, result = 0, at = 0;
  const int64_t* ints = nullptr;
  const double* floats = nullptr;
  int64_t int_count = 0, float_count = 0, next_float = 0;
  std::vector<MaskOp> mask_ops;  // those of the problem, of which most calls have none, lie here
  std::vector<Modifier> modifiers;

  explicit Reader(XLA_FFI_CallFrame* frame) : frame(frame) {
    for (int64_t i = 0; i < frame->attrs.size; ++i) {
      if (frame->attrs.types[i] != XLA_FFI_AttrType_ARRAY) continue;
      auto* array = static_cast<XLA_FFI_Array*>(frame->attrs.attrs[i]);
      std::string_view name(frame->attrs.names[i]->ptr, frame->attrs.names[i]->len);
      if (name == "ints" && array->dtype == XLA_FFI_DataType_S64) {
        ints = static_cast<const int64_t*>(array->data);
        int_count = int64_t(array->size);
      }
      if (name == "floats" && array->dtype == XLA_FFI_DataType_F64) {
        floats = static_cast<const double*>(array->data);
        float_count = int64_t(array->size);
      }
    }
    require(ints && floats, "attributes are missing");
  }

  int64_t number() {
    require(at < int_count, "too few integers");
    return ints[at++];
  }
  double real() {
    require(next_float < float_count, "too few numbers");
    return floats[next_float++];
  }
  const XLA_FFI_Buffer& input() {
    require(argument < frame->args.size, "too few arrays");
    return *static_cast<XLA_FFI_Buffer*>(frame->args.args[argument++]);
  }
  const XLA_FFI_Buffer& output() {
    require(result < frame->rets.size, "too few results");
    return *static_cast<XLA_FFI_Buffer*>(frame->rets.rets[result++]);
  }
};

bool is_real(const XLA_FFI_Buffer& b) { return b.dtype == XLA_FFI_DataType_F32 || b.dtype == XLA_FFI_DataType_F64; }

int64_t count_of(const XLA_FFI_Buffer& b) {
  int64_t count = 1;
  for (int64_t i = 0; i < b.rank; ++i) count *= b.dims[i];
  return count;
}

// The one number of an array.
template <class T>
T only(const XLA_FFI_Buffer& b, XLA_FFI_DataType dtype) {
  require(b.dtype == dtype && count_of(b) == 1, "an array of one number has another type or size");
  return *static_cast<const T*>(b.data);
}

Type type_of(const XLA_FFI_Buffer& b) {
  switch (b.dtype) {
    case XLA_FFI_DataType_F32:
      return Type::f32;
    case XLA_FFI_DataType_F64:
      return Type::f64;
    case XLA_FFI_DataType_F16:
      return Type::f16;
    case XLA_FFI_DataType_BF16:
      return Type::bf16;
    case XLA_FFI_DataType_S32:
      return Type::i32;
    case XLA_FFI_DataType_U32:
      return Type::u32;
    case XLA_FFI_DataType_PRED:
      return Type::boolean;
    default:
      throw Failure{"an array of a type that is not known"};
  }
}

bool is_floating(Type type) {
  return type == Type::f32 || type == Type::f64 || type == Type::f16 || type == Type::bf16;
}

// An array in the rank of the scores: an axis of size 1 is repeated, except that of columns, which has its size. Every
// number that a kernel reads lies inside it.
View view_of(const Problem& p, const XLA_FFI_Buffer& b, int64_t heads, int64_t rows, int64_t columns) {
  require(b.rank == p.lead_rank + 3, "ranks differ");
  auto fits = [&](int64_t axis, int64_t size) { return b.dims[axis] == size || b.dims[axis] == 1; };
  bool all = fits(p.lead_rank, heads) && fits(p.lead_rank + 1, rows) && b.dims[p.lead_rank + 2] == columns;
  for (int i = 0; i < p.lead_rank; ++i) all &= fits(i, p.lead_size[i]);
  require(all, "sizes differ");
  View v;
  v.data = b.data;
  v.type = type_of(b);
  int64_t strides[kMaxLead + 3], stride = 1;
  for (int64_t i = b.rank - 1; i >= 0; --i) {
    strides[i] = b.dims[i] == 1 ? 0 : stride;
    stride *= b.dims[i];
  }
  for (int i = 0; i < p.lead_rank; ++i) v.lead[i] = strides[i];
  v.head = strides[p.lead_rank];
  v.row = strides[p.lead_rank + 1];
  v.column = strides[p.lead_rank + 2];
  return v;
}

int64_t size_of(const XLA_FFI_Buffer& b, int64_t from_last) { return b.dims[b.rank - from_last]; }

// Numbers with a fraction, for each of `heads` heads.
View real_view(const Problem& p, const XLA_FFI_Buffer& b, int64_t heads, int64_t rows, int64_t columns) {
  View v = view_of(p, b, heads, rows, columns);
  require(is_floating(v.type), "an array of real numbers has another type");
  return v;
}

View mask_view(Reader& reader, const Problem& p, Type type, int64_t rows, int64_t columns) {
  View v = view_of(p, reader.input(), p.heads, rows, columns);
  require(v.type == type, "an array of a mask has another type");
  return v;
}

// One that may be the same for all keys.
View pairs_view(const Problem& p, const XLA_FFI_Buffer& b, int64_t rows, int64_t columns) {
  return view_of(p, b, p.heads, rows, b.rank && size_of(b, 1) == 1 ? 1 : columns);
}

// The truth values of all blocks that the queries and keys of this call lie in.
View blocks_view(const Problem& p, const MaskOp& op, const XLA_FFI_Buffer& b) {
  require(op.left > 0 && op.right > 0 && p.first_query >= 0 && p.first_key >= 0, "blocks begin before the first token");
  require(b.rank == p.lead_rank + 3, "ranks differ");
  int64_t rows = size_of(b, 2), columns = size_of(b, 1);
  require(rows == 1 || (p.queries + p.first_query - 1) / op.left < rows, "sizes differ");
  require(columns == 1 || (p.keys + p.first_key - 1) / op.right < columns, "sizes differ");
  return view_of(p, b, p.heads, rows, columns);
}

MaskOp mask_op(Reader& reader, const Problem& p) {
  MaskOp op;
  int64_t kind = reader.number();
  require(kind >= 0 && kind <= int64_t(MaskKind::blocks), "a mask of a kind that is not known");
  op.kind = MaskKind(kind);
  int64_t how[3], *number[3] = {&op.offset, &op.left, &op.right};
  for (int k = 0; k < 3; ++k) {
    how[k] = reader.number();
    *number[k] = reader.number();
  }
  op.has_left = how[1];
  op.has_right = how[2];
  int64_t arrays = reader.number();
  View* data[3] = {&op.one, &op.lefts, &op.rights};
  for (int k = 0; k < 3; ++k)
    if (how[k] > 1) *data[k] = mask_view(reader, p, Type::i32, p.queries, 1);
  bool joins = op.kind <= MaskKind::negation, is_segments = op.kind == MaskKind::segments;
  bool is_boolean = op.kind == MaskKind::dense || op.kind == MaskKind::blocks;
  require(arrays == (joins || op.kind == MaskKind::window ? 0 : is_segments ? 2 : 1), "a mask of other arrays");
  if (is_boolean) {
    const XLA_FFI_Buffer& b = reader.input();
    op.one = op.kind == MaskKind::blocks ? blocks_view(p, op, b) : pairs_view(p, b, p.queries, p.keys);
    require(op.one.type == Type::boolean, "an array of a mask has another type");
  } else if (arrays) {
    op.one = mask_view(reader, p, Type::i32, p.queries, 1);
  }
  if (is_segments) op.other = mask_view(reader, p, Type::i32, 1, p.keys);
  return op;
}

// The lead sizes are those of the results: operands may be repeated along a leading axis.
void read_sizes(Problem& p, const XLA_FFI_Buffer& rows, const XLA_FFI_Buffer& key, const XLA_FFI_Buffer& value) {
  require(rows.rank >= 3 && rows.rank <= kMaxLead + 3 && key.rank == rows.rank && value.rank == rows.rank,
          "ranks differ");
  p.lead_rank = int(rows.rank - 3);
  for (int i = 0; i < p.lead_rank; ++i) p.batch *= p.lead_size[i] = rows.dims[i];
  p.heads = size_of(rows, 3);
  p.queries = size_of(rows, 2);
  p.groups = size_of(key, 3);
  p.keys = size_of(key, 2);
  p.width = size_of(key, 1);
  p.value_width = size_of(value, 1);
  require(p.groups > 0 && p.heads % p.groups == 0, "heads are no multiple of groups");
}

// A result of this call: of its type, with nothing repeated.
void* result_of(const Problem& p, const XLA_FFI_Buffer& b, XLA_FFI_DataType dtype, int64_t heads, int64_t rows,
                int64_t columns) {
  require(b.rank == p.lead_rank + 3 && b.dtype == dtype, "a result has another rank or type");
  require(count_of(b) == p.batch * heads * rows * columns, "sizes differ");
  view_of(p, b, heads, rows, columns);
  return b.data;
}

void read_operands(Reader& reader, Problem& p, const XLA_FFI_Buffer& rows) {
  const XLA_FFI_Buffer &query = reader.input(), &key = reader.input(), &value = reader.input(), &scale = reader.input();
  read_sizes(p, rows, key, value);
  require(query.dtype == key.dtype && query.dtype == value.dtype && is_real(rows), "types differ");
  p.query = real_view(p, query, p.heads, p.queries, p.width);
  p.key = real_view(p, key, p.groups, p.keys, p.width);
  p.value = real_view(p, value, p.groups, p.keys, p.value_width);
  bool wide = scale.dtype == XLA_FFI_DataType_F64;
  p.scale = wide ? only<double>(scale, XLA_FFI_DataType_F64) : double(only<float>(scale, XLA_FFI_DataType_F32));

  int64_t intervals = reader.number(), ops = reader.number(), modifiers = reader.number();
  bool has_bias = reader.number();
  int64_t drops = reader.number();
  p.threshold = uint32_t(reader.number());
  bool has_first_query = reader.number(), has_first_key = reader.number();
  require(std::min({intervals, ops, modifiers}) >= 0, "a program of less than nothing");
  require(intervals <= kMaxMaskOps && ops <= kMaxMaskOps && modifiers <= kMaxModifiers, "too long a program");
  p.kept_factor = reader.real();
  if (has_bias) {
    p.bias = pairs_view(p, reader.input(), p.queries, p.keys);
    require(is_floating(p.bias.type), "a bias has another type");
  }
  if ((p.drops = drops > 0)) {
    p.drops_all = drops > 1;
    for (View& word : p.word) word = mask_view(reader, p, Type::u32, 1, 1);
  }
  if (has_first_query) p.first_query = only<int32_t>(reader.input(), XLA_FFI_DataType_S32);
  if (has_first_key) p.first_key = only<int32_t>(reader.input(), XLA_FFI_DataType_S32);
  reader.mask_ops.resize(intervals + ops);
  p.interval = reader.mask_ops.data();
  p.mask = p.interval + intervals;
  reader.modifiers.resize(modifiers);
  p.modifier = reader.modifiers.data();
  for (; p.intervals < intervals; ++p.intervals) {
    MaskOp op = p.interval[p.intervals] = mask_op(reader, p);
    require(op.kind >= MaskKind::window && op.kind <= MaskKind::query_lengths, "an interval of another kind");
  }
  int depth = 0;
  for (; p.mask_ops < ops; ++p.mask_ops) {
    MaskOp op = p.mask[p.mask_ops] = mask_op(reader, p);
    bool joins = op.kind == MaskKind::conjunction || op.kind == MaskKind::disjunction;
    depth += joins ? -1 : op.kind == MaskKind::negation ? 0 : 1;
    require(depth >= 1 && depth <= kMaxMaskDepth, "the program of a mask does not fit its stack");
  }
  for (; p.modifiers < modifiers; ++p.modifiers) {
    Modifier& m = p.modifier[p.modifiers];
    int64_t kind = reader.number();
    require(kind >= 0 && kind <= int64_t(ModifierKind::relative_bias), "a modifier of a kind that is not known");
    m.kind = ModifierKind(kind);
    m.offset = reader.number();
    bool traced = reader.number();
    m.cap = reader.real();
    if (m.kind == ModifierKind::softcap) continue;
    const XLA_FFI_Buffer& array = reader.input();
    require(array.rank && size_of(array, 1) % 2, "a table has no middle");
    m.radius = size_of(array, 1) / 2;
    m.array = real_view(p, array, p.heads, 1, m.kind == ModifierKind::alibi ? 1 : 2 * m.radius + 1);
    if (traced) m.traced_offset = mask_view(reader, p, Type::i32, p.queries, 1);
  }
}

// How many threads beside the caller's are worth waking: none for what takes less than some ten microseconds.
int64_t helpers(const Pool& pool, double products) { return products < 4e5 ? 0 : pool.threads() - 1; }

int64_t helpers(const Pool& pool, const Problem& p) {
  return helpers(pool, double(p.batch) * p.heads * p.queries * p.keys * (p.width + p.value_width));
}

// Few blocks: each chunk of the keys of a block is a task.
void in_chunks(const Pool& pool, const Problem& p, const Kernels& kernels, int64_t tasks, int64_t others) {
  int64_t blocks = p.blocks(), chunks = p.key_chunks();
  int64_t bytes = kernels.partial_bytes(p);
  int64_t scratch = kernels.forward_bytes(p);
  std::unique_ptr<char[]> sums(new char[bytes * tasks * chunks]);
  auto at = [&](int64_t i, int64_t chunk) { return sums.get() + bytes * (i * chunks + chunk); };
  share(pool, tasks * chunks, others, kernels, scratch, [&](int64_t n) {
    int64_t i = n / chunks, chunk = n % chunks;
    kernels.forward_chunk(p, i / blocks / p.groups, i / blocks % p.groups, i % blocks, chunk, at(i, chunk));
  });
  share(pool, tasks, others, kernels, scratch, [&](int64_t i) {
    kernels.forward_join(p, i / blocks / p.groups, i / blocks % p.groups, i % blocks, at(i, 0));
  });
}

void forward(XLA_FFI_CallFrame* frame, const Pool& pool) {
  Reader reader(frame);
  Problem p;
  const XLA_FFI_Buffer& out = reader.output();
  read_operands(reader, p, out);
  p.out = result_of(p, out, out.dtype, p.heads, p.queries, p.value_width);
  for (void** x : {&p.row_max, &p.row_sum, &p.lse})
    *x = result_of(p, reader.output(), out.dtype, p.heads, p.queries, 1);
  const Kernels& kernels = out.dtype == XLA_FFI_DataType_F64 ? *sets().of_double : *sets().of_float;
  int64_t blocks = p.blocks(), tasks = p.batch * p.groups * blocks, others = helpers(pool, p);
  if (others && tasks < 2 * (others + 1) && p.key_chunks() > 1) {
    in_chunks(pool, p, kernels, tasks, others);
    return;
  }
  share(pool, tasks, others, kernels, kernels.forward_bytes(p), [&](int64_t i) {
    int64_t block = blocks - 1 - i % blocks;  // under a causal mask the last blocks take longest
    kernels.forward(p, i / blocks / p.groups, i / blocks % p.groups, block);
  });
}

// ---------------------------------------------------------------------------------------------------------------------
// The order in which chunks of queries join their shares

// Chunks that add to the same numbers wait for each other, in the order in which they are begun: so nobody waits for a
// chunk that no thread has. They are those of a batch entry and group, and, where a gradient of a bias is summed over
// entries or heads, those of all of them.
struct Order {
  std::vector<int64_t> domain, rank, members;  // of each (batch, group); members of each domain
  std::unique_ptr<std::atomic<int64_t>[]> turn;
  int64_t supers;

  Order(const Problem& p, bool shared) : supers(p.supers()) {
    int64_t pairs = p.batch * p.groups;
    domain.resize(pairs);
    rank.resize(pairs);
    members.assign(pairs, 0);
    for (int64_t i = 0; i < pairs; ++i) {
      domain[i] = shared ? domain_of(p, i) : i;
      rank[i] = members[domain[i]]++;
    }
    turn = std::make_unique<std::atomic<int64_t>[]>(pairs * supers);
    for (int64_t i = 0; i < pairs * supers; ++i) turn[i].store(0, std::memory_order_relaxed);
  }

  static int64_t domain_of(const Problem& p, int64_t pair) {
    int64_t batch = pair / p.groups, group = pair % p.groups, found = 0, step = 1;
    if (p.dbias_view.head) {
      found = group;
      step = p.groups;
    }
    for (int i = p.lead_rank - 1; i >= 0; --i) {
      if (p.dbias_view.lead[i]) {
        found += batch % p.lead_size[i] * step;
        step *= p.lead_size[i];
      }
      batch /= p.lead_size[i];
    }
    return found;
  }
};

struct Place {
  std::atomic<int64_t>* turn;
  int64_t number;
};

void wait(void* state, int64_t super) {
  auto* place = static_cast<Place*>(state);
  for (int64_t spins = 0; place->turn[super].load(std::memory_order_acquire) != place->number; ++spins)
    if (spins > 200) std::this_thread::yield();
}

void pass(void* state, int64_t super) {
  auto* place = static_cast<Place*>(state);
  place->turn[super].store(place->number + 1, std::memory_order_release);
}

void clear(const XLA_FFI_Buffer& b) { std::memset(b.data, 0, count_of(b) * (b.dtype == XLA_FFI_DataType_F64 ? 8 : 4)); }

// dout or out, and dlse or a sum, of each query.
View of_values(Reader& reader, const Problem& p) {
  return real_view(p, reader.input(), p.heads, p.queries, p.value_width);
}
View of_rows(Reader& reader, const Problem& p) { return real_view(p, reader.input(), p.heads, p.queries, 1); }

// The gradients of query, key and value, of which the first gave this call its sizes.
void gradients_of(Reader& reader, Problem& p, const XLA_FFI_Buffer& dquery) {
  p.dquery = result_of(p, dquery, dquery.dtype, p.heads, p.queries, p.width);
  p.dkey = result_of(p, reader.output(), dquery.dtype, p.groups, p.keys, p.width);
  p.dvalue = result_of(p, reader.output(), dquery.dtype, p.groups, p.keys, p.value_width);
}

void backward(XLA_FFI_CallFrame* frame, const Pool& pool) {
  Reader reader(frame);
  Problem p;
  const XLA_FFI_Buffer& dquery = reader.output();
  read_operands(reader, p, dquery);
  p.saved_out = of_values(reader, p);
  p.saved_max = of_rows(reader, p);
  p.saved_sum = of_rows(reader, p);
  p.dout = of_values(reader, p);
  p.dlse = of_rows(reader, p);
  gradients_of(reader, p, dquery);
  bool shared = false, one_row = false;
  std::vector<double> bias_sums;
  if (reader.number()) {
    const XLA_FFI_Buffer& found = reader.output();
    p.dbias_view = pairs_view(p, found, p.queries, p.keys);
    require(found.dtype == dquery.dtype, "types differ");
    p.dbias = found.data;
    clear(found);
    for (int i = 0; i < p.lead_rank; ++i) shared |= p.lead_size[i] > 1 && !p.dbias_view.lead[i];
    shared |= p.heads > 1 && !p.dbias_view.head;
    one_row = p.queries > 1 && !p.dbias_view.row;
    if (shared || one_row || (p.keys > 1 && !p.dbias_view.column)) {
      bias_sums.resize(count_of(found));
      p.dbias_sums = bias_sums.data();
    }
  }
  for (int n = 0; n < p.modifiers; ++n)
    if (reader.number()) {
      const XLA_FFI_Buffer& found = reader.output();
      bool fits = count_of(found) == p.batch * p.heads * (2 * p.modifier[n].radius + 1);
      require(found.dtype == dquery.dtype && fits, "the gradient of a modifier has another type or size");
      p.modifier[n].gradient = found.data;
      clear(found);
    }
  const Kernels& kernels = dquery.dtype == XLA_FFI_DataType_F64 ? *sets().of_double : *sets().of_float;
  int64_t pairs = p.batch * p.groups, chunks = p.chunks();
  Order order(p, shared);
  share(pool, pairs * chunks, helpers(pool, p), kernels, kernels.backward_bytes(p), [&](int64_t i) {
    int64_t pair = i % pairs, chunk = chunks - 1 - i / pairs, domain = order.domain[pair];
    Place place = {&order.turn[domain * order.supers], i / pairs * order.members[domain] + order.rank[pair]};
    kernels.backward(p, pair / p.groups, pair % p.groups, chunk,
                     Turns{&place, wait, pass, i < pairs, (shared || one_row) && !p.sums_bias_of_rows()});
  });
  for (int64_t i = 0; i < int64_t(bias_sums.size()); ++i)
    if (dquery.dtype == XLA_FFI_DataType_F64)
      static_cast<double*>(p.dbias)[i] = bias_sums[i];
    else
      static_cast<float*>(p.dbias)[i] = float(bias_sums[i]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Directions of short texts: a task for each group

void read_tangents(Reader& reader, Problem& p) {
  require(p.keys <= kTileKeys && !p.modifiers && !p.bias.data, "directions are of short texts without a modifier");
  if (reader.number()) p.query_moved = real_view(p, reader.input(), p.heads, p.queries, p.width);
  if (reader.number()) p.key_moved = real_view(p, reader.input(), p.groups, p.keys, p.width);
  if (reader.number()) p.value_moved = real_view(p, reader.input(), p.groups, p.keys, p.value_width);
}

void run_directions(const Pool& pool, const Problem& p, const XLA_FFI_Buffer& result) {
  const Kernels& kernels = result.dtype == XLA_FFI_DataType_F64 ? *sets().of_double : *sets().of_float;
  double products = 4.0 * double(p.batch) * p.heads * p.queries * p.keys * (p.width + p.value_width);
  share(pool, p.batch * p.groups, helpers(pool, products), kernels, kernels.directions_bytes(p),
        [&](int64_t i) { kernels.directions(p, i / p.groups, i % p.groups); });
}

void tangent(XLA_FFI_CallFrame* frame, const Pool& pool) {
  Reader reader(frame);
  Problem p;
  const XLA_FFI_Buffer& out = reader.output();
  read_operands(reader, p, out);
  read_tangents(reader, p);
  p.out = result_of(p, out, out.dtype, p.heads, p.queries, p.value_width);
  p.lse = result_of(p, reader.output(), out.dtype, p.heads, p.queries, 1);
  run_directions(pool, p, out);
}

void hvp(XLA_FFI_CallFrame* frame, const Pool& pool) {
  Reader reader(frame);
  Problem p;
  const XLA_FFI_Buffer& dquery = reader.output();
  read_operands(reader, p, dquery);
  read_tangents(reader, p);
  p.dout = of_values(reader, p);
  p.dlse = of_rows(reader, p);
  if (reader.number()) {
    p.dout_moved = of_values(reader, p);
    p.dlse_moved = of_rows(reader, p);
  }
  gradients_of(reader, p, dquery);
  run_directions(pool, p, dquery);
}

// ---------------------------------------------------------------------------------------------------------------------
// Tokens times a weight

// No bit depends on them.
constexpr int64_t kTaskRows = 480, kTaskColumns = 512;  // of a task at the most
constexpr int64_t kLeastRows = 128;                     // of a block, where each thread gets one

int64_t parts(int64_t of, int64_t each) { return (of + each - 1) / each; }

void project(XLA_FFI_CallFrame* frame, const Pool& pool) {
  Reader reader(frame);
  const XLA_FFI_Buffer &x = reader.input(), &w = reader.input(), &y = reader.output();
  require(x.rank == 2 && w.rank == 2 && y.rank == 2, "a product is of matrices");
  require(x.dtype == w.dtype && x.dtype == y.dtype && is_real(x), "types differ");
  bool turned = reader.number();
  Linear l = {x.dims[0], x.dims[1], y.dims[1], x.data, w.data, turned, y.data};
  require(y.dims[0] == l.rows && w.dims[turned] == l.depth && w.dims[!turned] == l.columns, "sizes differ");
  require(l.rows > 0 && l.depth > 0 && l.columns > 0, "a product of no numbers");
  const Kernels& kernels = y.dtype == XLA_FFI_DataType_F64 ? *sets().of_double : *sets().of_float;
  // To read a weight takes as long as four rows of products, and these a quarter of the time of those in attention.
  int64_t others = helpers(pool, double(l.depth) * l.columns * std::max(1.0, double(l.rows) / 4));
  int64_t threads = others + 1, blocks = parts(l.rows, kTaskRows);
  // As many blocks of rows for each thread; but a block of few rows does not pay for packing the weight once more.
  if (blocks * parts(l.columns, kTaskColumns) < 4 * threads)
    blocks = std::max(blocks, std::min(parts(blocks, threads) * threads, l.rows / kLeastRows));
  int64_t rows = parts(parts(l.rows, blocks), 12) * 12;  // of a register tile
  blocks = parts(l.rows, rows);
  // Few rows: the columns are divided, so that each thread has some.
  int64_t width =
      blocks >= threads ? kTaskColumns : std::min(parts(parts(l.columns, 2 * threads), 64) * 64, kTaskColumns);
  int64_t strips = parts(l.columns, width);
  share(pool, blocks * strips, others, kernels, kernels.project_bytes(rows, width), [&](int64_t i) {
    int64_t row = i % blocks * rows, column = i / blocks * width;
    kernels.project(l, row, std::min(rows, l.rows - row), column, std::min(width, l.columns - column));
  });
}

// ---------------------------------------------------------------------------------------------------------------------

XLA_FFI_Error* handle(XLA_FFI_CallFrame* frame, void (*run)(XLA_FFI_CallFrame*, const Pool&)) {
  return handled(frame, [run](XLA_FFI_CallFrame* frame) {
    require(sets().of_float, "this processor has none of the instruction sets");
    run(frame, Pool{frame->api, frame->ctx});
  });
}

}  // namespace
}  // namespace attendax

// Rises with every change of what program.py writes and of what the results are: library.py has the same number, and
// takes no library with another.
ATTENDAX_EXPORT int32_t attendax_version() { return 6; }

// The instruction set that is used; empty where none runs here.
ATTENDAX_EXPORT const char* attendax_isa() { return attendax::sets().of_float ? attendax::sets().of_float->name : ""; }

ATTENDAX_EXPORT XLA_FFI_Error* attendax_forward(XLA_FFI_CallFrame* frame) {
  return attendax::handle(frame, attendax::forward);
}

ATTENDAX_EXPORT XLA_FFI_Error* attendax_backward(XLA_FFI_CallFrame* frame) {
  return attendax::handle(frame, attendax::backward);
}

ATTENDAX_EXPORT XLA_FFI_Error* attendax_tangent(XLA_FFI_CallFrame* frame) {
  return attendax::handle(frame, attendax::tangent);
}

ATTENDAX_EXPORT XLA_FFI_Error* attendax_hvp(XLA_FFI_CallFrame* frame) { return attendax::handle(frame, attendax::hvp); }

ATTENDAX_EXPORT XLA_FFI_Error* attendax_project(XLA_FFI_CallFrame* frame) {
  return attendax::handle(frame, attendax::project);
}
