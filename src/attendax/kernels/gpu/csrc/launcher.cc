// Launches compiled kernels over the buffers of one custom call, one after the other on XLA's stream, by the driver of
// CUDA. The driver is opened when the first call runs: nothing of CUDA is needed to build or to load this library.
//
// The attribute `plan` is what compiled.py writes: the digest of the kernels that the program was compiled for, then
// for each launch the number of a kernel, its blocks, its arrays (a count, then their places among arguments and
// results) and its numbers of 32 bits (a count, then each).
#include <dlfcn.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "handler.h"

namespace attendax {
namespace {

typedef void* Handle;
typedef int Status;  // CUresult; 0 is success

struct Driver {
  Status (*module_load)(Handle*, const void*) = nullptr;
  Status (*get_function)(Handle*, Handle, const char*) = nullptr;
  Status (*set_attribute)(Handle, int, int) = nullptr;
  Status (*context_of_stream)(Handle, Handle*) = nullptr;
  Status (*push_context)(Handle) = nullptr;
  Status (*pop_context)(Handle*) = nullptr;
  Status (*name_of_error)(Status, const char**) = nullptr;
  Status (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**,
                   void**) = nullptr;

  Driver() {
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) throw Failure(dlerror());
    find("cuModuleLoadData", module_load);
    find("cuModuleGetFunction", get_function);
    find("cuFuncSetAttribute", set_attribute);
    find("cuStreamGetCtx", context_of_stream);
    find("cuCtxPushCurrent_v2", push_context);  // without _v2 it is the call of CUDA 3
    find("cuCtxPopCurrent_v2", pop_context);
    find("cuGetErrorName", name_of_error);
    find("cuLaunchKernel", launch);
  }
  void check(Status status, const std::string& what) const {
    if (!status) return;
    const char* name = nullptr;
    if (name_of_error(status, &name) || !name) name = "an error that is not known";
    Failure failure((what + ": " + name + " (" + std::to_string(status) + ")").c_str());
    failure.code = XLA_FFI_Error_Code_INTERNAL;
    throw failure;
  }

 private:
  Handle library;

  template <class Function>
  void find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function) throw Failure((std::string("the driver of CUDA has no ") + name).c_str());
  }
};

const Driver& driver() {
  static const Driver loaded;  // where that throws, the next call tries again
  return loaded;
}

struct Kernel {
  std::string name, image;
  int64_t threads, shared, scratch;
  std::map<Handle, Handle> functions;  // of each context, and so of each device
};

std::mutex lock;
std::map<std::pair<int64_t, int64_t>, Kernel> kernels;  // by digest and number

// XLA does not promise that the context of its stream is current.
struct Context {
  Handle context = nullptr;

  explicit Context(Handle stream) {
    driver().check(driver().context_of_stream(stream, &context), "the context of the stream");
    driver().check(driver().push_context(context), "the context of the stream");
  }
  ~Context() {
    Handle unused;
    driver().pop_context(&unused);
  }
};

// The kernel, and what the driver calls it in a context: its image is loaded there once.
std::pair<const Kernel*, Handle> loaded(int64_t digest, int64_t number, Handle context) {
  std::lock_guard<std::mutex> guard(lock);
  auto found = kernels.find({digest, number});
  require(found != kernels.end(),
          "the program was compiled for kernels that this process has not loaded: trace it anew");
  Kernel& kernel = found->second;
  Handle& function = kernel.functions[context];
  if (!function) {
    Handle module = nullptr, made = nullptr;
    driver().check(driver().module_load(&module, kernel.image.data()), "the kernel " + kernel.name + " does not load");
    driver().check(driver().get_function(&made, module, kernel.name.c_str()), "the kernel " + kernel.name);
    constexpr int kMaxDynamicShared = 8;
    if (kernel.shared > 48 << 10)  // which each kernel has without being asked
      driver().check(driver().set_attribute(made, kMaxDynamicShared, int(kernel.shared)), "shared memory");
    function = made;
  }
  return {&kernel, function};
}

struct Words {
  const int64_t* data = nullptr;
  size_t size = 0, at = 0;

  int64_t next() {
    require(at < size, "the plan of a launch ends too soon");
    return data[at++];
  }
  bool rest() const { return at < size; }
};

Words plan_of(const XLA_FFI_Attrs& attrs) {
  for (int64_t i = 0; i < attrs.size; ++i) {
    std::string_view name(attrs.names[i]->ptr, attrs.names[i]->len);
    auto* array = static_cast<XLA_FFI_Array*>(attrs.attrs[i]);
    if (name == "plan" && attrs.types[i] == XLA_FFI_AttrType_ARRAY && array->dtype == XLA_FFI_DataType_S64)
      return {static_cast<const int64_t*>(array->data), array->size};
  }
  throw Failure("the plan of a launch is missing");
}

void launch(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Stream_Get_Args of_stream = {XLA_FFI_Stream_Get_Args_STRUCT_SIZE, nullptr, frame->ctx, nullptr};
  if (XLA_FFI_Error* error = frame->api->XLA_FFI_Stream_Get(&of_stream)) {
    XLA_FFI_Error_Destroy_Args args = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
    frame->api->XLA_FFI_Error_Destroy(&args);
    throw Failure("XLA has no stream here");
  }
  std::vector<void*> buffers;
  for (int64_t i = 0; i < frame->args.size; ++i)
    buffers.push_back(static_cast<XLA_FFI_Buffer*>(frame->args.args[i])->data);
  for (int64_t i = 0; i < frame->rets.size; ++i)
    buffers.push_back(static_cast<XLA_FFI_Buffer*>(frame->rets.rets[i])->data);
  Context current(of_stream.stream);
  Words words = plan_of(frame->attrs);
  for (int64_t digest = words.next(); words.rest();) {
    auto [kernel, function] = loaded(digest, words.next(), current.context);
    int64_t blocks = words.next();
    std::vector<int64_t> values;  // little endian: an int32 is the first half
    for (int64_t count = words.next(); count > 0; --count) {
      int64_t place = words.next();
      require(place >= 0 && place < int64_t(buffers.size()), "a launch has no such array");
      values.push_back(int64_t(reinterpret_cast<intptr_t>(buffers[place])));
    }
    for (int64_t count = words.next(); count > 0; --count) values.push_back(words.next());
    values.resize(values.size() + kernel->scratch);  // pointers that Triton adds, to memory that no kernel here uses
    std::vector<void*> parameters;
    for (int64_t& value : values) parameters.push_back(&value);
    require(blocks > 0 && blocks < int64_t(1) << 31, "a launch of more blocks than CUDA takes");
    driver().check(driver().launch(function, unsigned(blocks), 1, 1, unsigned(kernel->threads), 1, 1,
                                   unsigned(kernel->shared), of_stream.stream, parameters.data(), nullptr),
                   "the launch of the kernel " + kernel->name);
  }
}

}  // namespace
}  // namespace attendax

ATTENDAX_EXPORT XLA_FFI_Error* attendax_launch(XLA_FFI_CallFrame* frame) {
  return attendax::handled(frame, attendax::launch);
}

ATTENDAX_EXPORT void attendax_add_kernel(int64_t digest, const char* name, const void* image, int64_t size,
                                         int64_t number, int64_t threads, int64_t shared, int64_t scratch) {
  std::lock_guard<std::mutex> guard(attendax::lock);
  std::string bytes(static_cast<const char*>(image), size_t(size));
  attendax::kernels.insert({{digest, number}, {name, bytes, threads, shared, scratch, {}}});
}
