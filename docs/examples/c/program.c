/* `program FOLDER`: reads the folder of a case, calls attention.c, and writes the results beside it. */
#include "attention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *folder;
static char text[1 << 16]; /* case.json */

static FILE *opened(const char *name, const char *ending, const char *how) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s%s", folder, name, ending);
    return fopen(path, how);
}

static int refuse(const char *why) {
    FILE *file = opened("error", ".json", "w");
    fprintf(file, "{\"kind\": \"not offered\", \"said\": [\"%s\"]}", why);
    return fclose(file) != 0;
}

static int says(const char *words) { return strstr(text, words) != NULL; }

static double number(const char *name) { /* after "name": */
    char key[64];
    snprintf(key, sizeof key, "\"%s\": ", name);
    const char *found = strstr(text, key);
    return found ? strtod(found + strlen(key), NULL) : 0;
}

static void *array(const char *name) { /* the numbers of an .npy; NULL if the case has no such array */
    FILE *file = opened(name, ".npy", "rb");
    if (!file) return NULL;
    unsigned char head[10];
    if (fread(head, 1, 10, file) != 10) exit(3);
    long start = 10 + head[8] + 256 * head[9];
    fseek(file, 0, SEEK_END);
    size_t size = ftell(file) - start;
    void *numbers = malloc(size + 1);
    fseek(file, start, SEEK_SET);
    if (fread(numbers, 1, size, file) != size) exit(3);
    fclose(file);
    return numbers;
}

static float *result(const char *name, size_t size) { /* NULL where it is not asked for */
    char file[64];
    snprintf(file, sizeof file, "\"%s.npy\"", name);
    return says(file) ? malloc(size * sizeof(float) + 1) : NULL;
}

static void write_array(const char *name, const float *x, int64_t a, int64_t b, int64_t c, int64_t d) {
    if (!x) return;
    char head[118], last[32] = "";
    if (d) snprintf(last, sizeof last, "%ld", (long)d);
    int used = snprintf(head, sizeof head, "{'descr': '<f4', 'fortran_order': False, 'shape': (%ld, %ld, %ld, %s)}",
                        (long)a, (long)b, (long)c, last);
    FILE *file = opened(name, ".npy", "wb");
    fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, file); /* 0x76 = 118 bytes of head: 128 in all */
    fprintf(file, "%s%*s\n", head, 117 - used, "");
    fwrite(x, sizeof(float), a * b * c * (d ? d : 1), file);
    fclose(file);
}

static uint8_t *whole(const uint8_t *allowed, int64_t B, int64_t N, int64_t pairs) { /* (B or 1, N or 1, T, S) */
    long b, n;
    if (!allowed) return NULL;
    sscanf(strstr(strstr(text, "\"allowed\": "), "\"shape\": ["), "\"shape\": [%ld, %ld", &b, &n);
    uint8_t *all = malloc(B * N * pairs + 1);
    for (int64_t head = 0; head < B * N; head++)
        memcpy(all + head * pairs, allowed + (head / N % b * n + head % N % n) * pairs, pairs);
    return all;
}

int main(int count, char **words) {
    if (count != 2) return 2;
    folder = words[1];
    FILE *file = opened("case", ".json", "r");
    if (!file || !fread(text, 1, sizeof text - 1, file)) return 2;
    if (!says("\"dtype\": \"float32\", \"sizes\"")) return refuse("float32 only");
    if (!says("\"asks_for\": []") && !says("\"asks_for\": [\"lse\"]")) return refuse("only masks and grouped heads");
    int64_t B = number("B"), N = number("N"), G = number("G"), T = number("T"), S = number("S"), D = number("D");
    int64_t V = number("V");
    float *query = array("query"), *key = array("key"), *value = array("value");
    uint8_t *allowed = whole(array("allowed"), B, N, T * S);
    float *out = result("out", B * N * T * V), *lse = result("lse", B * N * T);
    float *dq = result("grad_query", B * N * T * D), *dk = result("grad_key", B * G * S * D);
    float *dv = result("grad_value", B * G * S * V);
    if (out)
        attention_forward(query, key, value, allowed, out, lse, B, N, G, T, S, D, V, number("scale"));
    else
        attention_backward(query, key, value, allowed, array("cotangent_out"), array("cotangent_lse"), dq, dk, dv, B, N,
                           G, T, S, D, V, number("scale"));
    write_array("out", out, B, N, T, V);
    write_array("lse", lse, B, N, T, 0);
    write_array("grad_query", dq, B, N, T, D);
    write_array("grad_key", dk, B, G, S, D);
    write_array("grad_value", dv, B, G, S, V);
    return 0;
}
