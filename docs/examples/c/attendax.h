/* What `attendax check --lib FILE` calls: attention and its gradients, as two C functions.

   Arrays are float32, lie without gaps, and are (B, N, T, D) query, (B, G, S, D) key, (B, G, S, V) value, (B, N, T, V)
   out, (B, N, T) lse, (B, N, T, S) bias and allowed. Query head n reads the key head n / (N / G). A gradient has the
   shape of its array.

   allowed: 1 where a query may look at a key; NULL where each may look at all. Every mask is in it.
   bias: added to the scores; NULL where there is none. grad_bias is NULL there, too.
   lse: NULL where it is not asked for; cotangent_lse is NULL where only out has a cotangent.
   softcap: scores are softcap * tanh(score / softcap) before the bias; 0 for none. */
#ifndef ATTENDAX_H
#define ATTENDAX_H

#include <stdint.h>

enum { ATTENDAX_DONE = 0, ATTENDAX_NOT_OFFERED = 1 }; /* every other status is a failure */

int attendax_forward(const float *query, const float *key, const float *value, const float *bias,
                     const uint8_t *allowed, float *out, float *lse, int64_t B, int64_t N, int64_t G, int64_t T,
                     int64_t S, int64_t D, int64_t V, float scale, float softcap);

int attendax_backward(const float *query, const float *key, const float *value, const float *bias,
                      const uint8_t *allowed, const float *cotangent_out, const float *cotangent_lse,
                      float *grad_query, float *grad_key, float *grad_value, float *grad_bias, int64_t B, int64_t N,
                      int64_t G, int64_t T, int64_t S, int64_t D, int64_t V, float scale, float softcap);

#endif
