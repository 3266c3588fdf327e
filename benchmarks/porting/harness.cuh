// What the CuTe C++ programs of this folder share: operands, a launch, and a file with the result.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>
#include <cute/tensor.hpp>

#define CHECK(call)                                                              \
  do {                                                                           \
    cudaError_t status = (call);                                                 \
    if (status != cudaSuccess) {                                                 \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));            \
      exit(1);                                                                   \
    }                                                                            \
  } while (0)

// The numbers of examples/porting/operands.py.
struct Stream {
  uint64_t state;
  uint64_t next() { return state = state * 6364136223846793005ull + 1442695040888963407ull; }
  void fill(std::vector<float>& out) {
    for (auto& x : out) x = float(next() >> 40) / 16777216.0f - 0.5f;
  }
  void fill(std::vector<cute::half_t>& out) {
    for (auto& x : out) x = cute::half_t((float((next() >> 33) % 2048) - 1024.0f) / 512.0f);
  }
};

// The raw bytes of C, contiguous along M, of a launch `run(m, n, k, A, B, C)`.
template <class T, class Run>
void multiply(char const* path, int m, int n, int k, uint64_t seed, Run run) {
  std::vector<T> a(m * k), b(n * k), c(m * n, T(-1));
  Stream stream{seed};
  stream.fill(a);
  stream.fill(b);
  T *dA, *dB, *dC;
  CHECK(cudaMalloc(&dA, sizeof(T) * a.size()));
  CHECK(cudaMalloc(&dB, sizeof(T) * b.size()));
  CHECK(cudaMalloc(&dC, sizeof(T) * c.size()));
  CHECK(cudaMemcpy(dA, a.data(), sizeof(T) * a.size(), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(dB, b.data(), sizeof(T) * b.size(), cudaMemcpyHostToDevice));
  run(m, n, k, dA, dB, dC);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(c.data(), dC, sizeof(T) * c.size(), cudaMemcpyDeviceToHost));
  FILE* file = fopen(path, "wb");
  if (file == nullptr || fwrite(c.data(), sizeof(T), c.size(), file) != c.size()) exit(2);
  fclose(file);
}

// PROGRAM TN|NT M N K SEED FILE
template <class T, class Tn, class Nt>
int program(int argc, char** argv, Tn tn, Nt nt) {
  if (argc != 7) {
    fprintf(stderr, "usage: %s TN|NT M N K SEED FILE\n", argv[0]);
    return 2;
  }
  int const m = atoi(argv[2]), n = atoi(argv[3]), k = atoi(argv[4]);
  uint64_t const seed = strtoull(argv[5], nullptr, 10);
  if (argv[1][0] == 'T') multiply<T>(argv[6], m, n, k, seed, tn);
  else multiply<T>(argv[6], m, n, k, seed, nt);
  return 0;
}

// Strides of a matrix of `lines` with neighbours along K (TN), or of columns of `lines` rows (NT).
template <bool TN>
CUTE_HOST_DEVICE auto strides(int rows, int depth) {
  if constexpr (TN) return cute::make_stride(depth, cute::Int<1>{});
  else return cute::make_stride(cute::Int<1>{}, rows);
}
