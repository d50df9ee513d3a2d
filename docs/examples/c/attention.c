/* Attention and its gradients, a tile of keys at a time: memory does not grow with T times S. */
#include "attention.h"
#include <math.h>
#include <stdlib.h>

enum { TILE = 32 };
static double dot(const float *x, const float *y, int64_t size) {
    double sum = 0;
    for (int64_t c = 0; c < size; c++) sum += x[c] * y[c];
    return sum;
}

void attention_forward(const float *query, const float *key, const float *value, const uint8_t *allowed, float *out,
                       float *lse, int64_t B, int64_t N, int64_t G, int64_t T, int64_t S, int64_t D, int64_t V,
                       float scale) {
    for (int64_t row = 0; row < B * N * T; row++) {
        int64_t head = row / T, shared = head / N * G + head % N / (N / G);
        const float *k = key + shared * S * D, *v = value + shared * S * V;
        float most = -INFINITY;
        double total = 0, mixed[V]; /* of a long row, float32 would lose digits */
        for (int64_t c = 0; c < V; c++) mixed[c] = 0;
        for (int64_t start = 0; start < S; start += TILE) {
            int64_t size = S - start < TILE ? S - start : TILE;
            float scores[TILE], top = most;
            for (int64_t j = 0; j < size; j++) {
                int hidden = allowed && !allowed[row * S + start + j];
                scores[j] = hidden ? -INFINITY : scale * dot(query + row * D, k + (start + j) * D, D);
                if (!(scores[j] <= top)) top = scores[j];
            }
            if (top == -INFINITY) continue;
            float kept = expf(most - top);
            total *= kept;
            for (int64_t c = 0; c < V; c++) mixed[c] *= kept;
            for (int64_t j = 0; j < size; j++) {
                if (scores[j] == -INFINITY) continue; /* 0 times NaN is NaN */
                float weight = expf(scores[j] - top);
                total += weight;
                for (int64_t c = 0; c < V; c++) mixed[c] += weight * v[(start + j) * V + c];
            }
            most = top;
        }
        for (int64_t c = 0; c < V; c++) out[row * V + c] = total == 0 ? 0 : mixed[c] / total;
        if (lse) lse[row] = most + log(total);
    }
}

void attention_backward(const float *query, const float *key, const float *value, const uint8_t *allowed,
                        const float *cotangent_out, const float *cotangent_lse, float *grad_query, float *grad_key,
                        float *grad_value, int64_t B, int64_t N, int64_t G, int64_t T, int64_t S, int64_t D, int64_t V,
                        float scale) {
    float *out = malloc((B * N * T * (V + 1) + 1) * sizeof(float)), *lse = out + B * N * T * V;
    attention_forward(query, key, value, allowed, out, lse, B, N, G, T, S, D, V, scale);
    int64_t queries = B * N * T * D, keys = B * G * S * D, values = B * G * S * V;
    double *dq = calloc(queries + keys + values + 1, sizeof(double)), *dk = dq + queries, *dv = dk + keys;
    for (int64_t start = 0; start < S; start += TILE)
        for (int64_t row = 0; row < B * N * T; row++) {
            int64_t head = row / T, first = (head / N * G + head % N / (N / G)) * S;
            const float *q = query + row * D, *cotangent = cotangent_out + row * V;
            double delta = dot(out + row * V, cotangent, V) - (cotangent_lse ? cotangent_lse[row] : 0);
            for (int64_t j = start; j < S && j < start + TILE; j++) {
                if (allowed && !allowed[row * S + j]) continue;
                const float *k = key + (first + j) * D, score = scale * dot(q, k, D);
                double weight = exp(score - lse[row]);
                double grad = weight * (dot(cotangent, value + (first + j) * V, V) - delta);
                for (int64_t c = 0; c < V; c++) dv[(first + j) * V + c] += weight * cotangent[c];
                for (int64_t c = 0; c < D; c++) dq[row * D + c] += scale * grad * k[c];
                for (int64_t c = 0; c < D; c++) dk[(first + j) * D + c] += scale * grad * q[c];
            }
        }
    for (int64_t c = 0; c < queries; c++) grad_query[c] = dq[c];
    for (int64_t c = 0; c < keys; c++) grad_key[c] = dk[c];
    for (int64_t c = 0; c < values; c++) grad_value[c] = dv[c];
    free(dq);
    free(out);
}
