// A driver of CUDA for tests without a GPU: it tells a callback what would be launched, and fails where it is told to.
// `fake_handler` has XLA's CPU call the launcher as its GPU would: with a stream.
#include <cstdlib>
#include <cstring>

#include "xla_ffi.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

typedef void (*Callback)(const char* kernel, const unsigned* sizes, void** parameters, void* stream);
static Callback callback = nullptr;
static XLA_FFI_Error* (*launcher)(XLA_FFI_CallFrame*) = nullptr;
static const char* failing = "";
static int status = 0, loads = 0, asked_shared = 0;
static long context = 1;

EXPORT void on_launch(Callback function) { callback = function; }
EXPORT void use_launcher(XLA_FFI_Error* (*function)(XLA_FFI_CallFrame*)) { launcher = function; }
EXPORT void fail_in(const char* function, int with) {
  failing = strdup(function);
  status = with;
}
EXPORT void be_on_device(long number) { context = number; }
EXPORT int loaded_modules() { return loads; }
EXPORT int shared_memory() { return asked_shared; }

static int result(const char* function) { return strcmp(function, failing) ? 0 : status; }

EXPORT int cuModuleLoadData(void** module, const void* image) {
  *module = const_cast<void*>(image);
  ++loads;
  return memcmp(image, "\177ELF", 4) ? 200 : result(__func__);
}
EXPORT int cuModuleGetFunction(void** function, void*, const char* name) {
  *function = strdup(name);
  return result(__func__);
}
EXPORT int cuFuncSetAttribute(void*, int attribute, int value) {
  asked_shared = attribute == 8 ? value : 0;
  return result(__func__);
}
EXPORT int cuStreamGetCtx(void* stream, void** found) {
  *found = reinterpret_cast<void*>(context);
  return stream == reinterpret_cast<void*>(7) ? result(__func__) : 400;
}
EXPORT int cuCtxPushCurrent_v2(void*) { return result(__func__); }
EXPORT int cuCtxPopCurrent_v2(void**) { return result(__func__); }
EXPORT int cuGetErrorName(int error, const char** name) {
  *name = error == 200 ? "CUDA_ERROR_INVALID_IMAGE" : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : nullptr;
  return *name ? 0 : 1;
}
EXPORT int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c,
                          unsigned shared, void* stream, void** parameters, void**) {
  unsigned sizes[3] = {x * y * z, a * b * c, shared};
  if (int failed = result(__func__)) return failed;
  callback(static_cast<const char*>(function), sizes, parameters, stream);
  return 0;
}

static XLA_FFI_Error* stream_of_test(XLA_FFI_Stream_Get_Args* args) {
  args->stream = reinterpret_cast<void*>(7);
  return nullptr;
}
EXPORT XLA_FFI_Error* fake_handler(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start) return launcher(frame);
  static XLA_FFI_Api api;
  memcpy(&api, frame->api, sizeof api);
  api.XLA_FFI_Stream_Get = stream_of_test;
  XLA_FFI_CallFrame with_stream = *frame;
  with_stream.api = &api;
  return launcher(&with_stream);
}
