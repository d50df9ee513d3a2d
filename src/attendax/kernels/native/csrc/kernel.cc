// The kernels, compiled once for each instruction set and type, with
//   ATTENDAX_ISA   name of the set
//   ATTENDAX_REAL  float or double, the type that is computed in
//
// Scores are held transposed: keys in rows, queries in lanes. So keys and values are read where they lie, one number at
// a time and broadcast; only queries are packed. Maximum, sum and interval of a query are lanes of a vector.
#define ATTENDAX_JOIN_(a, b) a##_##b
#define ATTENDAX_JOIN(a, b) ATTENDAX_JOIN_(a, b)
#define ATTENDAX_UNIT ATTENDAX_JOIN(ATTENDAX_ISA, ATTENDAX_REAL)
#define ATTENDAX_TEXT_(name) #name
#define ATTENDAX_TEXT(name) ATTENDAX_TEXT_(name)

#include "directions.h"
#include "linear.h"

namespace attendax {

extern const Kernels ATTENDAX_JOIN(kernels, ATTENDAX_UNIT);
const Kernels ATTENDAX_JOIN(kernels, ATTENDAX_UNIT) = {
    ATTENDAX_TEXT(ATTENDAX_ISA),
    ATTENDAX_UNIT::forward,
    ATTENDAX_UNIT::forward_chunk,
    ATTENDAX_UNIT::forward_join,
    ATTENDAX_UNIT::partial_bytes,
    ATTENDAX_UNIT::backward,
    ATTENDAX_UNIT::directions,
    ATTENDAX_UNIT::project,
    ATTENDAX_UNIT::forward_bytes,
    ATTENDAX_UNIT::backward_bytes,
    ATTENDAX_UNIT::directions_bytes,
    ATTENDAX_UNIT::project_bytes,
    [](int64_t bytes) { return ATTENDAX_UNIT::arena.reserve(bytes); },
    [] { ATTENDAX_UNIT::arena.give_back(); },
};

}  // namespace attendax
