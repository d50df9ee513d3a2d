// One call of a handler of the native library without JAX and XLA: driver PROBLEM RESULTS THREADS REPEATS
//
// It stands in XLA's place (csrc/xla_ffi.h): it gives the handler arrays, attributes and a pool of threads. So the
// kernels run wherever a compiler can compile them: under an emulator, or under ThreadSanitizer, which cannot look into
// XLA. native_driver.py writes the problem and reads the results: numbers of 64 bits and arrays, one after the other.
//
// Arrays have exactly their size, and results are NaN before: so a sanitizer sees what is read or written beyond them,
// and a reader what is never written. Where a repetition gives other bits than the first run, the exit status is 2.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "xla_ffi.h"

extern "C" XLA_FFI_Error* attendax_forward(XLA_FFI_CallFrame* frame);
extern "C" XLA_FFI_Error* attendax_backward(XLA_FFI_CallFrame* frame);
extern "C" XLA_FFI_Error* attendax_tangent(XLA_FFI_CallFrame* frame);
extern "C" XLA_FFI_Error* attendax_hvp(XLA_FFI_CallFrame* frame);
extern "C" XLA_FFI_Error* attendax_project(XLA_FFI_CallFrame* frame);
extern "C" const char* attendax_isa();

struct XLA_FFI_Error {
  std::string message;
};

// A pool of threads, as XLA has one for each client.
struct XLA_FFI_ExecutionContext {
  struct Task {
    XLA_FFI_Task* run;
    void* data;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  bool over = false;
  std::vector<std::thread> threads;

  explicit XLA_FFI_ExecutionContext(int count) {
    for (int i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
  }
  ~XLA_FFI_ExecutionContext() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      over = true;
    }
    changed.notify_all();
    for (std::thread& thread : threads) thread.join();
  }
  void add(Task task) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      tasks.push_back(task);
    }
    changed.notify_one();
  }
  void work() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [this] { return over || !tasks.empty(); });
      if (tasks.empty()) return;
      Task task = tasks.front();
      tasks.pop_front();
      lock.unlock();
      task.run(task.data);
    }
  }
};

namespace {

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

// XLA's functions that handlers call.
XLA_FFI_Error* create(XLA_FFI_Error_Create_Args* args) { return new XLA_FFI_Error{args->message}; }
void destroy(XLA_FFI_Error_Destroy_Args* args) { delete args->error; }
XLA_FFI_Error* schedule(XLA_FFI_ThreadPool_Schedule_Args* args) {
  args->ctx->add({args->task, args->data});
  return nullptr;
}
XLA_FFI_Error* number_of_threads(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  *args->num_threads = int64_t(args->ctx->threads.size());
  return nullptr;
}

struct File {
  std::FILE* file;

  File(const char* path, const char* mode) : file(std::fopen(path, mode)) {
    if (!file) fail(std::string("cannot open ") + path);
  }
  ~File() { std::fclose(file); }
  void read(void* to, size_t bytes) const {
    if (bytes && std::fread(to, 1, bytes, file) != bytes) fail("the problem is cut off");
  }
  int64_t number() const {
    int64_t x;
    read(&x, sizeof x);
    return x;
  }
};

// An array of exactly its size, as aligned as those of XLA.
struct Array {
  XLA_FFI_Buffer buffer = {};
  std::vector<int64_t> dims;
  int64_t bytes = 0;

  explicit Array(const File& from) {
    buffer.struct_size = sizeof buffer;
    buffer.dtype = XLA_FFI_DataType(from.number());
    bytes = from.number();
    dims.resize(size_t(buffer.rank = from.number()));
    for (int64_t& size : dims) {
      size = from.number();
      bytes *= size;
    }
    buffer.dims = dims.data();
    if (posix_memalign(&buffer.data, 64, size_t(bytes))) fail("no memory");
    std::memset(buffer.data, 0xFF, size_t(bytes));
  }
  Array(const Array&) = delete;
  ~Array() { std::free(buffer.data); }
};

typedef std::vector<std::unique_ptr<Array>> Arrays;

std::vector<void*> pointers(const Arrays& arrays) {
  std::vector<void*> found;
  for (const auto& array : arrays) found.push_back(&array->buffer);
  return found;
}

struct Problem {
  int64_t handler;
  Arrays arguments, results;
  std::vector<int64_t> ints;
  std::vector<double> floats;

  explicit Problem(const File& from) {
    handler = from.number();
    if (handler < 0 || handler > 4) fail("no such handler");
    ints.resize(size_t(from.number()));
    from.read(ints.data(), ints.size() * 8);
    floats.resize(size_t(from.number()));
    from.read(floats.data(), floats.size() * 8);
    for (int64_t count = from.number(); count > 0; --count) {
      arguments.push_back(std::make_unique<Array>(from));
      from.read(arguments.back()->buffer.data, size_t(arguments.back()->bytes));
    }
    for (int64_t count = from.number(); count > 0; --count) results.push_back(std::make_unique<Array>(from));
  }

  void run(XLA_FFI_ExecutionContext* threads) {
    XLA_FFI_Api api = {};
    api.struct_size = sizeof api;
    api.XLA_FFI_Error_Create = create;
    api.XLA_FFI_Error_Destroy = destroy;
    api.XLA_FFI_ThreadPool_Schedule = schedule;
    api.XLA_FFI_ThreadPool_NumThreads = number_of_threads;

    XLA_FFI_Array of_ints = {XLA_FFI_DataType_S64, ints.size(), ints.data()};
    XLA_FFI_Array of_floats = {XLA_FFI_DataType_F64, floats.size(), floats.data()};
    XLA_FFI_ByteSpan names[] = {{"floats", 6}, {"ints", 4}};
    XLA_FFI_ByteSpan* name_of[] = {&names[0], &names[1]};
    XLA_FFI_AttrType types[] = {XLA_FFI_AttrType_ARRAY, XLA_FFI_AttrType_ARRAY};
    void* attributes[] = {&of_floats, &of_ints};

    std::vector<void*> in = pointers(arguments), out = pointers(results);
    XLA_FFI_CallFrame frame = {};
    frame.struct_size = sizeof frame;
    frame.api = &api;
    frame.ctx = threads;
    frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
    frame.args = {sizeof frame.args, nullptr, int64_t(in.size()), nullptr, in.data()};
    frame.rets = {sizeof frame.rets, nullptr, int64_t(out.size()), nullptr, out.data()};
    frame.attrs = {sizeof frame.attrs, nullptr, 2, types, name_of, attributes};
    XLA_FFI_Error* (*handlers[])(XLA_FFI_CallFrame*) = {attendax_forward, attendax_backward, attendax_tangent,
                                                        attendax_hvp, attendax_project};
    if (XLA_FFI_Error* error = handlers[handler](&frame)) fail(error->message);
  }

  std::vector<char> found() const {
    std::vector<char> all;
    for (const auto& result : results) {
      auto* from = static_cast<const char*>(result->buffer.data);
      all.insert(all.end(), from, from + result->bytes);
    }
    return all;
  }
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) fail("usage: driver PROBLEM RESULTS THREADS REPEATS");
  Problem problem(File(arguments[1], "rb"));
  XLA_FFI_ExecutionContext threads(std::atoi(arguments[3]));
  std::vector<char> first;
  for (int k = 0; k < std::atoi(arguments[4]); ++k) {
    for (const auto& result : problem.results) std::memset(result->buffer.data, 0xFF, size_t(result->bytes));
    problem.run(&threads);
    std::vector<char> found = problem.found();
    if (!k) first = found;
    if (found != first) {
      std::fprintf(stderr, "run %d gives other bits\n", k);
      return 2;
    }
  }
  File to(arguments[2], "wb");
  if (!first.empty()) std::fwrite(first.data(), 1, first.size(), to.file);
  std::printf("%s\n", attendax_isa());
  return 0;
}
