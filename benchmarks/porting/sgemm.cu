// The CuTe C++ kernel that examples/porting/sgemm.py ports: fused multiply-adds in f32.
#include "harness.cuh"

using namespace cute;

template <class Strides, class Copy, class Shared>
__global__ __launch_bounds__(256) void sgemm(int m, int n, int k, float const* A, float const* B,
                                             float* C, Strides dA, Strides dB, Copy copy_ab,
                                             Shared shared) {
  __shared__ float bytes_a[cosize_v<Shared>], bytes_b[cosize_v<Shared>];
  auto mA = make_tensor(make_gmem_ptr(A), make_shape(m, k), dA);
  auto mB = make_tensor(make_gmem_ptr(B), make_shape(n, k), dB);
  auto mC = make_tensor(make_gmem_ptr(C), make_shape(m, n), make_stride(_1{}, m));
  auto gA = local_tile(mA, Shape<_128, _8>{}, make_coord(blockIdx.x, _));
  auto gB = local_tile(mB, Shape<_128, _8>{}, make_coord(blockIdx.y, _));
  auto gC = local_tile(mC, Shape<_128, _128>{}, make_coord(blockIdx.x, blockIdx.y));
  auto sA = make_tensor(make_smem_ptr(bytes_a), shared);
  auto sB = make_tensor(make_smem_ptr(bytes_b), shared);

  auto copying = copy_ab.get_slice(threadIdx.x);
  auto tAgA = copying.partition_S(gA), tBgB = copying.partition_S(gB);
  auto tAsA = copying.partition_D(sA), tBsB = copying.partition_D(sB);
  auto tArA = make_fragment_like(tAsA), tBrB = make_fragment_like(tBsB);

  auto mma = make_tiled_mma(UniversalFMA<float>{}, Layout<Shape<_16, _16, _1>>{});
  auto multiplying = mma.get_slice(threadIdx.x);
  auto tCsA = multiplying.partition_A(sA);
  auto tCsB = multiplying.partition_B(sB);
  auto tCgC = multiplying.partition_C(gC);
  auto tCrC = multiplying.make_fragment_C(tCgC);
  clear(tCrC);

  int const tiles = size<2>(gA);
  copy(copy_ab, tAgA(_, _, _, 0), tArA);
  copy(copy_ab, tBgB(_, _, _, 0), tBrB);
  for (int tile = 0; tile < tiles; ++tile) {
    __syncthreads();
    copy(tArA, tAsA);
    copy(tBrB, tBsB);
    __syncthreads();
    int const next = min(tile + 1, tiles - 1);
    copy(copy_ab, tAgA(_, _, _, next), tArA);
    copy(copy_ab, tBgB(_, _, _, next), tBrB);
    gemm(mma, tCsA, tCsB, tCrC);
  }
  copy(tCrC, tCgC);
}

template <bool TN>
void launch(int m, int n, int k, float const* A, float const* B, float* C) {
  auto copy_ab = conditional_return<TN>(
      make_tiled_copy(Copy_Atom<UniversalCopy<float>, float>{},
                      Layout<Shape<_32, _8>, Stride<_8, _1>>{}, Layout<Shape<_1, _1>>{}),
      make_tiled_copy(Copy_Atom<UniversalCopy<uint128_t>, float>{}, Layout<Shape<_32, _8>>{},
                      Layout<Shape<_4, _1>>{}));
  auto shared = conditional_return<TN>(Layout<Shape<_128, _8>, Stride<_1, Int<129>>>{},
                                       Layout<Shape<_128, _8>>{});
  dim3 grid(m / 128, n / 128);
  sgemm<<<grid, 256>>>(m, n, k, A, B, C, strides<TN>(m, k), strides<TN>(n, k), copy_ab, shared);
}

int main(int argc, char** argv) {
  return program<float>(argc, argv, launch<true>, launch<false>);
}
