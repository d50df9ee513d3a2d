// Vectors of the instruction set, as functions of lanes: arithmetic, exponential, transposes, conversions.
//
// No inline function of the standard library may be used in a unit that is compiled for an instruction set: the linker
// could keep the copy of this unit for the whole library, and a processor without the set would meet it.
//
// Contraction is off, so a multiply-add is where fma() stands and nowhere else: else the compiler would decide by loop,
// and the same row would have other bits on another path (L15).
#pragma once
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc 12 says so of its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)0)
#endif

#include "problem.h"

#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define INLINED __attribute__((always_inline))  // of a function without a name

namespace attendax {
namespace ATTENDAX_UNIT {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kGap = 64;  // poisoned bytes between two slices of scratch memory
#else
constexpr int64_t kGap = 0;
#endif

typedef ATTENDAX_REAL Real;
constexpr bool kDouble = sizeof(Real) == 8;

#if defined(__AVX512F__)
constexpr int kBytes = 64, kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kBytes = 32, kRegisters = 16;
#else
constexpr int kBytes = 16, kRegisters = 32;
#endif

// Rows of a register tile. In one chain: 2 * 12 sums, 2 vectors and a broadcast fill 32 registers. In pieces the sum so
// far waits beside each of them: with more rows it would do so in memory.
constexpr int kRows = kRegisters == 32 ? 6 : 4;
constexpr int kChainRows = kRegisters == 32 ? 12 : 4;

constexpr int W = kBytes / int(sizeof(Real));  // lanes of a vector
constexpr int kPanel = 2 * W;                  // queries of a panel
constexpr int kLd = kBlockRows + 16;           // padded: rows fall into different sets of the cache

template <int Size>
struct Integer;
template <>
struct Integer<4> {
  typedef int32_t type;
};
template <>
struct Integer<8> {
  typedef int64_t type;
};
typedef Integer<sizeof(Real)>::type Int;

typedef Real F __attribute__((vector_size(kBytes)));
typedef Int I __attribute__((vector_size(kBytes)));
typedef uint32_t U __attribute__((vector_size(W * 4)));  // as many lanes, of 32 bits
typedef Real Reals __attribute__((vector_size(kBytes), aligned(sizeof(Real)), may_alias));
typedef Int Ints __attribute__((vector_size(kBytes), aligned(sizeof(Int)), may_alias));

INLINE F load(const Real* p) { return *reinterpret_cast<const Reals*>(p); }
INLINE void store(Real* p, F x) { *reinterpret_cast<Reals*>(p) = x; }
INLINE I load_ints(const Int* p) { return *reinterpret_cast<const Ints*>(p); }
INLINE F all(Real x) { return x - F{}; }
INLINE I all_ints(Int x) { return x - I{}; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t rounded_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

constexpr Real kLowest = kDouble ? Real(-1.7976931348623157e308) : Real(-3.4028234663852886e38f);
const Real kInfinity = Real(__builtin_inff());
const Real kNaN = Real(__builtin_nanf(""));
constexpr Real kLog2e = Real(1.4426950408889634074);
constexpr Real kRestOfLog2e = kDouble ? Real(2.0355273740931033e-17) : Real(1.9259629911266175e-8);
constexpr Real kUnderflow = Real(kDouble ? -709.0895657128240 : -88.02969193111305);  // 2^-1023 and 2^-127 are 0 here

// a b + c, rounded once.
INLINE F fma(F a, F b, F c) {
#if defined(__AVX512F__)
  if constexpr (kDouble)
    return (F)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
  else
    return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  if constexpr (kDouble)
    return (F)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
  else
    return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  if constexpr (kDouble)
    return (F)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
  else
    return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  F x;
  for (int i = 0; i < W; ++i) x[i] = __builtin_fma(a[i], b[i], c[i]);
  return x;
#endif
}
INLINE F fma(Real a, F b, F c) { return fma(all(a), b, c); }

// The larger one; the second where one of them is NaN.
INLINE F larger(F a, F b) {
#if defined(__AVX512F__)
  if constexpr (kDouble)
    return (F)_mm512_max_pd((__m512d)a, (__m512d)b);
  else
    return (F)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  if constexpr (kDouble)
    return (F)_mm256_max_pd((__m256d)a, (__m256d)b);
  else
    return (F)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}
INLINE F smaller(F a, F b) {
#if defined(__AVX512F__)
  if constexpr (kDouble)
    return (F)_mm512_min_pd((__m512d)a, (__m512d)b);
  else
    return (F)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  if constexpr (kDouble)
    return (F)_mm256_min_pd((__m256d)a, (__m256d)b);
  else
    return (F)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}

// x where it is finite, and NaN for infinities: what is not finite must show (L6).
INLINE F nan_unless_finite(F x) { return fma(x, F{}, x); }

INLINE F fraction_of(F x, F n) { return fma(x, all(kRestOfLog2e), fma(x, all(kLog2e), -n)); }

// exp(x) for x <= 0, rounded to 0 below the least normal number; exactly 1 at 0. NaN stays NaN. It is 2^n 2^f, where
// the product x log2(e) is not rounded before n is taken away: equal scores are off by as much as unequal ones (L8).
INLINE F exp_of(F x) {
  x = larger(all(kUnderflow), x);
  if constexpr (kDouble) {
    const F magic = all(Real(6755399441055744.0 + 1023.0));  // 1.5 * 2^52: its low bits become the biased exponent
    F shifted = fma(x, all(kLog2e), magic), f = fraction_of(x, shifted - magic);
    constexpr double ln2[] = {1.3691488853904128e-12, 2.5678435993488206e-11,
                              4.4455382718708117e-10, 7.0549116208011234e-09,
                              1.0178086009239699e-07, 1.3215486790144307e-06,
                              1.5252733804059841e-05, 1.5403530393381608e-04,
                              1.3333558146428443e-03, 9.6181291076284772e-03,
                              5.5504108664821580e-02, 2.4022650695910072e-01,
                              6.9314718055994531e-01, 1.0};  // (ln 2)^n / n!, n = 13 to 0
    F p = all(Real(ln2[0]));
    for (int n = 1; n < 14; ++n) p = fma(p, f, all(Real(ln2[n])));
    return p * (F)((I)shifted << (kDouble ? 52 : 23));
  } else {
    const F magic = all(Real(12582912.0f + 127.0f));  // 1.5 * 2^23
    F shifted = fma(x, all(kLog2e), magic), f = fraction_of(x, shifted - magic);
    // 1 + f g(f), off by at most 2^-28 before it is rounded; g in a tree: longer chains would fill the scheduler.
    F square = f * f;
    F p = fma(f, all(Real(0x1.4173c8p-13f)), all(Real(0x1.5f0988p-10f)));
    F q = fma(f, all(Real(0x1.3b2ddap-7f)), all(Real(0x1.c6af7ap-5f)));
    F r = fma(f, all(Real(0x1.ebfbdcp-3f)), all(Real(0x1.62e430p-1f)));
    p = fma(p, square, q);
    p = fma(p, square, r);
    p = fma(p, f, all(Real(1)));
    return p * (F)((I)shifted << (kDouble ? 52 : 23));
  }
}

INLINE F select(I where, F yes, F no) { return where ? yes : no; }

INLINE F tanh_of(F x) {
  if constexpr (kDouble) {
    F y{};
    for (int i = 0; i < W; ++i) y[i] = Real(tanh(double(x[i])));
    return y;
  } else {
    F a = larger(x, -x), z = x * x;
    F p = fma(z, all(Real(-5.70498872745e-3f)), all(Real(2.06390887954e-2f)));  // odd polynomial below 0.625 (Moshier)
    p = fma(p, z, all(Real(-5.37397155531e-2f)));
    p = fma(p, z, all(Real(1.33314422036e-1f)));
    p = fma(p, z, all(Real(-3.33332819422e-1f)));
    F small = fma(p * z, x, x);
    F e = exp_of(a * all(Real(-2)));  // exp(-2 |x|): no overflow
    F large = (all(Real(1)) - e) / (all(Real(1)) + e);
    large = select(x < F{}, -large, large);
    return select(a < all(Real(0.625f)), small, large);  // NaN: the second, and that is NaN
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Transposes

template <int... Lane>
struct Lanes {};
template <int N, int... Lane>
struct Count : Count<N - 1, N - 1, Lane...> {};
template <int... Lane>
struct Count<0, Lane...> {
  typedef Lanes<Lane...> type;
};

template <int Half, int... Lane>
INLINE void transpose_step(F (&x)[W], Lanes<Lane...>) {
  for (int i = 0; i < W; ++i) {
    if (i & Half) continue;
    F a = x[i], b = x[i + Half];
    x[i] = __builtin_shufflevector(a, b, ((Lane & Half) == 0 ? Lane : W + Lane - Half)...);
    x[i + Half] = __builtin_shufflevector(a, b, ((Lane & Half) == 0 ? Lane + Half : W + Lane)...);
  }
}

INLINE void transpose(F (&x)[W]) {
  typedef typename Count<W>::type L;
  if constexpr (W >= 16) transpose_step<8>(x, L{});
  if constexpr (W >= 8) transpose_step<4>(x, L{});
  if constexpr (W >= 4) transpose_step<2>(x, L{});
  transpose_step<1>(x, L{});
}

typedef uint8_t Bytes16 __attribute__((vector_size(16), aligned(1), may_alias));

// 16 rows of 16 bytes, turned: four rounds of interleaving the upper with the lower half.
INLINE void transpose_bytes(Bytes16 (&x)[16]) {
  for (int round = 0; round < 4; ++round) {
    Bytes16 y[16];
    for (int i = 0; i < 8; ++i) {
      y[2 * i] = __builtin_shufflevector(x[i], x[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      y[2 * i + 1] =
          __builtin_shufflevector(x[i], x[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    for (int i = 0; i < 16; ++i) x[i] = y[i];
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Conversions

INLINE Real widened_bf16(uint16_t x) {
  uint32_t bits = uint32_t(x) << 16;
  float y;
  memcpy(&y, &bits, 4);
  return Real(y);
}

INLINE float widened_f16(uint16_t x) {
#if defined(__F16C__) || defined(__AVX512F__)
  return _cvtsh_ss(x);
#elif defined(__aarch64__)
  __fp16 y;
  memcpy(&y, &x, 2);
  return float(y);
#else
  uint32_t sign = uint32_t(x & 0x8000) << 16, rest = x & 0x7FFF;
  float y;
  if (rest < 0x400) {
    y = float(rest) * 0x1p-24f;
    uint32_t bits;
    memcpy(&bits, &y, 4);
    bits |= sign;
    memcpy(&y, &bits, 4);
    return y;
  }
  uint32_t bits = sign | (rest >= 0x7C00 ? 0x7F800000u | (rest & 0x3FF) << 13 : (rest << 13) + 0x38000000u);
  memcpy(&y, &bits, 4);
  return y;
#endif
}

// One number of an array.
INLINE Real number_at(const void* data, Type type, int64_t at) {
  switch (type) {
    case Type::f32:
      return Real(static_cast<const float*>(data)[at]);
    case Type::f64:
      return Real(static_cast<const double*>(data)[at]);
    case Type::f16:
      return Real(widened_f16(static_cast<const uint16_t*>(data)[at]));
    default:
      return widened_bf16(static_cast<const uint16_t*>(data)[at]);
  }
}

constexpr Type kOwnType = kDouble ? Type::f64 : Type::f32;

// `count` numbers, `step` apart, as Real.
void widen_row(const void* data, Type type, int64_t at, int64_t step, Real* to, int64_t count) {
  int64_t i = 0;
  if (step == 1 && type == kOwnType) {
    memcpy(to, static_cast<const Real*>(data) + at, count * sizeof(Real));
    return;
  }
  if (step == 1 && type == Type::bf16 && !kDouble) {
    const uint16_t* from = static_cast<const uint16_t*>(data) + at;
    typedef uint16_t Halves __attribute__((vector_size(W * 2), aligned(2), may_alias));
    for (; i + W <= count; i += W) {
      U bits = __builtin_convertvector(*reinterpret_cast<const Halves*>(from + i), U) << 16;
      memcpy(to + i, &bits, sizeof bits);
    }
  }
#if defined(__AVX512F__)
  if (step == 1 && type == Type::f16 && !kDouble)
    for (const uint16_t* from = static_cast<const uint16_t*>(data) + at; i + 16 <= count; i += 16)
      _mm512_storeu_ps(reinterpret_cast<float*>(to) + i,
                       _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
#elif defined(__AVX2__)
  if (step == 1 && type == Type::f16 && !kDouble)
    for (const uint16_t* from = static_cast<const uint16_t*>(data) + at; i + 8 <= count; i += 8)
      _mm256_storeu_ps(reinterpret_cast<float*>(to) + i,
                       _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
#endif
  for (; i < count; ++i) to[i] = number_at(data, type, at + i * step);
}

INLINE bool any_of(I lanes) {
  typedef int64_t Words __attribute__((vector_size(kBytes)));
  Words words = (Words)lanes;
  int64_t any = 0;
  for (int i = 0; i < kBytes / 8; ++i) any |= words[i];
  return any;
}
INLINE bool any_not_zero(F x) { return any_of(x != F{}); }  // NaN is not zero

// Whether all are finite: 0 times each of them adds up to 0.
INLINE bool finite_row(const Real* x, int64_t n) {
  int64_t i = 0;
  F zero{};
  for (; i + W <= n; i += W) zero = fma(load(x + i), F{}, zero);
  Real rest = 0;
  for (; i < n; ++i) rest += x[i] * Real(0);
  return rest == 0 && !any_not_zero(zero);
}

INLINE bool is_finite(Real x) { return x - x == 0; }

// ---------------------------------------------------------------------------------------------------------------------
// Scratch memory of a thread, kept between calls while it is small
//
// The slices that a kernel needs are the members of a struct. Its constructor takes them from an arena. From an arena
// without memory it takes null pointers, and the arena adds up the bytes: so nobody adds them up by hand.

struct Arena {
  static constexpr int64_t kKept = int64_t(1) << 20;  // bytes
  char* base = nullptr;
  int64_t size = 0, used = 0;
  ~Arena() { free(base); }
  bool reserve(int64_t bytes) {  // false if the memory cannot be had
    if (bytes <= size) return true;
    drop();
    int64_t wanted = rounded_up(bytes, 4096);
    base = static_cast<char*>(aligned_alloc(64, wanted));
    if (base) size = wanted;
    return base;
  }
  Arena& start() {
    used = 0;
    if (base) ASAN_POISON_MEMORY_REGION(base, size);
    return *this;
  }
  template <class T>
  T* take(int64_t count) {
    int64_t bytes = count * int64_t(sizeof(T)), from = used;
    used += rounded_up(bytes, 64) + kGap;
    if (!base) return nullptr;
    if (used > size) __builtin_trap();
    ASAN_UNPOISON_MEMORY_REGION(base + from, bytes);
    return reinterpret_cast<T*>(base + from);
  }
  // As many numbers for each of several slices.
  template <class... T>
  void take_all(int64_t count, T*&... slices) {
    ((slices = take<T>(count)), ...);
  }
  void give_back() {
    if (size > kKept) drop();
  }
  void drop() {
    free(base);
    base = nullptr;
    size = 0;
  }
};
thread_local Arena arena;

template <class Memory, class... Arguments>
int64_t bytes_of(const Arguments&... arguments) {
  Arena counter;
  Memory(counter, arguments...);
  return counter.used;
}

// Denormals count as 0, on whatever thread a task runs, as on the thread that XLA calls from: else bits would depend on
// the thread (L15).
struct NoDenormals {
#if defined(__x86_64__)
  unsigned before = _mm_getcsr();
  NoDenormals() { _mm_setcsr(0x9FC0); }  // flush results, read denormals as 0, round to nearest, no traps
  ~NoDenormals() { _mm_setcsr(before); }
#elif defined(__aarch64__)
  uint64_t before;
  NoDenormals() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t(1) << 24));
  }
  ~NoDenormals() { __asm__ volatile("msr fpcr, %0" : : "r"(before)); }
#endif
};

}  // namespace
}  // namespace ATTENDAX_UNIT
}  // namespace attendax
