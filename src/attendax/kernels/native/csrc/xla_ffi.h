// XLA's foreign function interface for C, as far as the handlers use it: version 0.3, that of jaxlib 0.10.2, declared
// here so that nothing is needed to build but a compiler. tests/engine/native/test_build.py compares it with the header
// of the jaxlib that is installed.
//
// Why this version: XLA takes a handler whose version lies between 0.1 and its own (tried with that of jaxlib 0.10.2:
// it takes 0.1 to 0.3, and refuses 0.0 and 0.4). After a handler that it refuses, its CPU backend does not start at
// all. So the version must be that of the oldest jaxlib that is supported, and library.py registers nothing with one
// that came after those that are known: it may have ceased to take this version. A newer interface of the same major
// version adds fields behind those that are here, and moves none.
#pragma once
#include <stddef.h>
#include <stdint.h>

constexpr int XLA_FFI_API_MAJOR = 0;
constexpr int XLA_FFI_API_MINOR = 3;

// A structure begins with its size, up to the last field that its writer knows, and with a chain of extensions.
#define XLA_FFI_SIZE(type, last) \
  constexpr size_t type##_STRUCT_SIZE = offsetof(type, last) + sizeof(((type*)nullptr)->last)

extern "C" {

enum XLA_FFI_Extension_Type : int32_t { XLA_FFI_Extension_Metadata = 1 };
enum XLA_FFI_Error_Code : int32_t {
  XLA_FFI_Error_Code_INVALID_ARGUMENT = 3,
  XLA_FFI_Error_Code_RESOURCE_EXHAUSTED = 8,
  XLA_FFI_Error_Code_INTERNAL = 13,
};
enum XLA_FFI_AttrType : int32_t { XLA_FFI_AttrType_ARRAY = 1 };
enum XLA_FFI_ExecutionStage : int32_t { XLA_FFI_ExecutionStage_EXECUTE = 3 };
enum XLA_FFI_DataType : int32_t {
  XLA_FFI_DataType_PRED = 1,
  XLA_FFI_DataType_S32 = 4,
  XLA_FFI_DataType_S64 = 5,
  XLA_FFI_DataType_U32 = 8,
  XLA_FFI_DataType_F16 = 10,
  XLA_FFI_DataType_F32 = 11,
  XLA_FFI_DataType_F64 = 12,
  XLA_FFI_DataType_BF16 = 16,
};

struct XLA_FFI_Error;
struct XLA_FFI_ExecutionContext;
typedef void XLA_FFI_Task(void* data);

struct XLA_FFI_Extension_Base {
  size_t struct_size;
  XLA_FFI_Extension_Type type;
  XLA_FFI_Extension_Base* next;
};

struct XLA_FFI_Api_Version {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  int major_version, minor_version;
};

struct XLA_FFI_Metadata {
  size_t struct_size;
  XLA_FFI_Api_Version api_version;
  uint32_t traits;
  int64_t state_type_id;
};

struct XLA_FFI_Metadata_Extension {
  XLA_FFI_Extension_Base extension_base;
  XLA_FFI_Metadata* metadata;
};

struct XLA_FFI_Error_Create_Args {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  const char* message;
  XLA_FFI_Error_Code errc;
};
XLA_FFI_SIZE(XLA_FFI_Error_Create_Args, errc);

struct XLA_FFI_Error_Destroy_Args {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_Error* error;
};
XLA_FFI_SIZE(XLA_FFI_Error_Destroy_Args, error);

struct XLA_FFI_Stream_Get_Args {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_ExecutionContext* ctx;
  void* stream;
};
XLA_FFI_SIZE(XLA_FFI_Stream_Get_Args, stream);

struct XLA_FFI_ThreadPool_Schedule_Args {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_ExecutionContext* ctx;
  XLA_FFI_Task* task;
  void* data;
};
XLA_FFI_SIZE(XLA_FFI_ThreadPool_Schedule_Args, data);

struct XLA_FFI_ThreadPool_NumThreads_Args {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_ExecutionContext* ctx;
  int64_t* num_threads;
};
XLA_FFI_SIZE(XLA_FFI_ThreadPool_NumThreads_Args, num_threads);

// The functions of XLA, in its order, up to the last that is used; those without a signature are not.
struct XLA_FFI_Api {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_Api_Version api_version;
  const void* internal_api;
  XLA_FFI_Error* (*XLA_FFI_Error_Create)(XLA_FFI_Error_Create_Args*);
  void* XLA_FFI_Error_GetMessage;
  void (*XLA_FFI_Error_Destroy)(XLA_FFI_Error_Destroy_Args*);
  void* XLA_FFI_Handler_Register;
  XLA_FFI_Error* (*XLA_FFI_Stream_Get)(XLA_FFI_Stream_Get_Args*);
  void *XLA_FFI_Type_Register, *XLA_FFI_ExecutionContext_Get;
  void *XLA_FFI_State_Set, *XLA_FFI_State_Get, *XLA_FFI_DeviceMemory_Allocate, *XLA_FFI_DeviceMemory_Free;
  XLA_FFI_Error* (*XLA_FFI_ThreadPool_Schedule)(XLA_FFI_ThreadPool_Schedule_Args*);
  XLA_FFI_Error* (*XLA_FFI_ThreadPool_NumThreads)(XLA_FFI_ThreadPool_NumThreads_Args*);
};

struct XLA_FFI_Buffer {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_DataType dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct XLA_FFI_ByteSpan {
  const char* ptr;
  size_t len;
};

struct XLA_FFI_Array {
  XLA_FFI_DataType dtype;
  size_t size;
  void* data;
};

struct XLA_FFI_Args {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  int64_t size;
  int32_t* types;
  void** args;
};

struct XLA_FFI_Rets {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  int64_t size;
  int32_t* types;
  void** rets;
};

struct XLA_FFI_Attrs {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  int64_t size;
  XLA_FFI_AttrType* types;
  XLA_FFI_ByteSpan** names;
  void** attrs;
};

struct XLA_FFI_CallFrame {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  const XLA_FFI_Api* api;
  XLA_FFI_ExecutionContext* ctx;
  XLA_FFI_ExecutionStage stage;
  XLA_FFI_Args args;
  XLA_FFI_Rets rets;
  XLA_FFI_Attrs attrs;
};
}
