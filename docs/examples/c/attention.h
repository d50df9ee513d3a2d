/* Attention and its gradients, as two C functions.

   Arrays are float32, lie without gaps, and are (B, N, T, D) query, (B, G, S, D) key, (B, G, S, V) value, (B, N, T, V)
   out, (B, N, T) lse, (B, N, T, S) allowed. Query head n reads the key head n / (N / G). A gradient has the shape of
   its array.

   allowed: 1 where a query may look at a key; NULL if each may look at all. Every mask is in it.
   lse: NULL if it is not asked for; cotangent_lse is NULL if only out has a cotangent. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include <stdint.h>

void attention_forward(const float *query, const float *key, const float *value, const uint8_t *allowed, float *out,
                       float *lse, int64_t B, int64_t N, int64_t G, int64_t T, int64_t S, int64_t D, int64_t V,
                       float scale);

void attention_backward(const float *query, const float *key, const float *value, const uint8_t *allowed,
                        const float *cotangent_out, const float *cotangent_lse, float *grad_query, float *grad_key,
                        float *grad_value, int64_t B, int64_t N, int64_t G, int64_t T, int64_t S, int64_t D, int64_t V,
                        float scale);

#endif
