// The CuTe C++ kernel that examples/porting/hgemm_sm90.py ports: wgmma fed by cp.async.
#include "harness.cuh"

#include <cutlass/arch/barrier.h>

using namespace cute;

template <class Strides, class Copy, class Shared, class Mma>
__global__ __launch_bounds__(128) void hgemm(int m, int n, int k, half_t const* A, half_t const* B,
                                             half_t* C, Strides dA, Strides dB, Copy copy_ab,
                                             Shared shared, Mma mma) {
  extern __shared__ __align__(1024) half_t bytes[];
  auto mA = make_tensor(make_gmem_ptr(A), make_shape(m, k), dA);
  auto mB = make_tensor(make_gmem_ptr(B), make_shape(n, k), dB);
  auto mC = make_tensor(make_gmem_ptr(C), make_shape(m, n), make_stride(_1{}, m));
  auto gA = local_tile(mA, Shape<_128, _64>{}, make_coord(blockIdx.x, _));
  auto gB = local_tile(mB, Shape<_128, _64>{}, make_coord(blockIdx.y, _));
  auto gC = local_tile(mC, Shape<_128, _128>{}, make_coord(blockIdx.x, blockIdx.y));
  auto sA = make_tensor(make_smem_ptr(bytes), shared);
  auto sB = make_tensor(make_smem_ptr(bytes + cosize_v<Shared>), shared);
  constexpr int stages = size<2>(Shared{});

  auto copying = copy_ab.get_slice(threadIdx.x);
  auto tAgA = copying.partition_S(gA), tBgB = copying.partition_S(gB);
  auto tAsA = copying.partition_D(sA), tBsB = copying.partition_D(sB);
  auto multiplying = mma.get_slice(threadIdx.x);
  auto tCrA = multiplying.make_fragment_A(multiplying.partition_A(sA));  // descriptors
  auto tCrB = multiplying.make_fragment_B(multiplying.partition_B(sB));
  auto tCgC = multiplying.partition_C(gC);
  auto tCrC = multiplying.make_fragment_C(tCgC);
  clear(tCrC);

  int const tiles = size<2>(gA);
  auto fetch = [&](int tile, int stage) {
    tile = min(tile, tiles - 1);
    copy(copy_ab, tAgA(_, _, _, tile), tAsA(_, _, _, stage));
    copy(copy_ab, tBgB(_, _, _, tile), tBsB(_, _, _, stage));
    cp_async_fence();
  };
  for (int stage = 0; stage < stages - 1; ++stage) fetch(stage, stage);
  int reading = 0, filling = stages - 1;
  CUTE_NO_UNROLL
  for (int tile = 0; tile < tiles; ++tile) {
    cp_async_wait<stages - 2>();
    cutlass::arch::fence_view_async_shared();
    __syncthreads();
    fetch(tile + stages - 1, filling);
    warpgroup_fence_operand(tCrC);
    warpgroup_arrive();
    gemm(mma, tCrA(_, _, _, reading), tCrB(_, _, _, reading), tCrC);
    warpgroup_commit_batch();
    warpgroup_wait<0>();
    warpgroup_fence_operand(tCrC);
    reading = reading == stages - 1 ? 0 : reading + 1;
    filling = filling == stages - 1 ? 0 : filling + 1;
  }
  cp_async_wait<0>();
  copy(tCrC, tCgC);
}

template <bool TN>
void launch(int m, int n, int k, half_t const* A, half_t const* B, half_t* C) {
  using Async = Copy_Atom<SM80_CP_ASYNC_CACHEALWAYS<uint128_t>, half_t>;
  auto copy_ab = conditional_return<TN>(
      make_tiled_copy(Async{}, Layout<Shape<_16, _8>, Stride<_8, _1>>{}, Layout<Shape<_1, _8>>{}),
      make_tiled_copy(Async{}, Layout<Shape<_16, _8>>{}, Layout<Shape<_8, _1>>{}));
  auto piece = conditional_return<TN>(GMMA::Layout_K_SW128_Atom<half_t>{},
                                      GMMA::Layout_MN_SW128_Atom<half_t>{});
  auto shared = tile_to_shape(piece, Shape<_128, _64, _3>{});
  constexpr auto major = TN ? GMMA::Major::K : GMMA::Major::MN;
  auto mma = make_tiled_mma(SM90_64x64x16_F16F16F16_SS<major, major>{});
  auto kernel = hgemm<decltype(strides<TN>(m, k)), decltype(copy_ab), decltype(shared),
                      decltype(mma)>;
  int const bytes = 2 * cosize(shared) * sizeof(half_t);
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<dim3(m / 128, n / 128), 128, bytes>>>(m, n, k, A, B, C, strides<TN>(m, k),
                                                 strides<TN>(n, k), copy_ab, shared, mma);
}

int main(int argc, char** argv) {
  return program<half_t>(argc, argv, launch<true>, launch<false>);
}
