// What every handler does: it answers XLA's question for its version, and turns an exception into an error of XLA.
#pragma once
#include <cstdio>
#include <new>

#include "xla_ffi.h"

#define ATTENDAX_EXPORT extern "C" __attribute__((visibility("default")))

namespace attendax {
namespace {

struct Failure {
  char message[400];
  XLA_FFI_Error_Code code = XLA_FFI_Error_Code_INVALID_ARGUMENT;

  explicit Failure(const char* text) { std::snprintf(message, sizeof message, "attendax: %s", text); }
};

[[maybe_unused]] void require(bool holds, const char* message) {
  if (!holds) throw Failure(message);
}

inline XLA_FFI_Error* error_of(const XLA_FFI_Api* api, const Failure& failure) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, failure.message, failure.code};
  return api->XLA_FFI_Error_Create(&args);
}

template <class Run>
XLA_FFI_Error* handled(XLA_FFI_CallFrame* frame, const Run& run) {
  if (frame->extension_start && frame->extension_start->type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Metadata* metadata = reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    metadata->traits = 0;
    return nullptr;
  }
  try {
    require(frame->stage == XLA_FFI_ExecutionStage_EXECUTE, "another stage than that of execution");
    run(frame);
  } catch (const Failure& failure) {
    return error_of(frame->api, failure);
  } catch (const std::bad_alloc&) {
    Failure failure("out of memory: there is none for the scratch arrays of a call");
    failure.code = XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
    return error_of(frame->api, failure);
  }
  return nullptr;
}

}  // namespace
}  // namespace attendax
