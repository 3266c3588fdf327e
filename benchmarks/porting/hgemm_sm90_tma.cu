// The CuTe C++ kernel that examples/porting/hgemm_sm90_tma.py ports: wgmma fed by TMA.
#include "harness.cuh"

#include <cutlass/arch/barrier.h>

using namespace cute;
using Full = cutlass::arch::ClusterTransactionBarrier;
using Read = cutlass::arch::ClusterBarrier;

template <class Shared>
struct Storage {
  alignas(1024) half_t a[cosize_v<Shared>];
  alignas(1024) half_t b[cosize_v<Shared>];
  uint64_t full[size<2>(Shared{})], read[size<2>(Shared{})];
};

template <class TmaA, class TmaB, class Shared, class Mma>
__global__ __launch_bounds__(128) void hgemm(int m, int n, int k, half_t* C,
                                             __grid_constant__ TmaA const load_a,
                                             __grid_constant__ TmaB const load_b, Shared shared,
                                             Mma mma) {
  extern __shared__ __align__(1024) char bytes[];
  auto& storage = *reinterpret_cast<Storage<Shared>*>(bytes);
  auto mA = load_a.get_tma_tensor(make_shape(m, k));
  auto mB = load_b.get_tma_tensor(make_shape(n, k));
  auto mC = make_tensor(make_gmem_ptr(C), make_shape(m, n), make_stride(_1{}, m));
  auto gA = local_tile(mA, Shape<_128, _64>{}, make_coord(blockIdx.x, _));
  auto gB = local_tile(mB, Shape<_128, _64>{}, make_coord(blockIdx.y, _));
  auto gC = local_tile(mC, Shape<_128, _128>{}, make_coord(blockIdx.x, blockIdx.y));
  auto sA = make_tensor(make_smem_ptr(storage.a), shared);
  auto sB = make_tensor(make_smem_ptr(storage.b), shared);
  constexpr int stages = size<2>(Shared{});

  auto parts_a = tma_partition(load_a, Int<0>{}, Layout<_1>{}, group_modes<0, 2>(sA),
                               group_modes<0, 2>(gA));
  auto tAgA = get<0>(parts_a);
  auto tAsA = get<1>(parts_a);
  auto parts_b = tma_partition(load_b, Int<0>{}, Layout<_1>{}, group_modes<0, 2>(sB),
                               group_modes<0, 2>(gB));
  auto tBgB = get<0>(parts_b);
  auto tBsB = get<1>(parts_b);
  auto multiplying = mma.get_slice(threadIdx.x);
  auto tCrA = multiplying.make_fragment_A(multiplying.partition_A(sA));  // descriptors
  auto tCrB = multiplying.make_fragment_B(multiplying.partition_B(sB));
  auto tCgC = multiplying.partition_C(gC);
  auto tCrC = multiplying.make_fragment_C(tCgC);
  clear(tCrC);

  constexpr int transaction = 2 * sizeof(half_t) * size(take<0, 2>(Shared{}));
  auto fetch = [&](int tile, int stage) {
    Full::arrive_and_expect_tx(&storage.full[stage], transaction);
    copy(load_a.with(storage.full[stage]), tAgA(_, tile), tAsA(_, stage));
    copy(load_b.with(storage.full[stage]), tBgB(_, tile), tBsB(_, stage));
  };
  int const tiles = size<2>(gA);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      Full::init(&storage.full[stage], 1);
      Read::init(&storage.read[stage], 128);
    }
    cutlass::arch::fence_barrier_init();
    for (int stage = 0; stage < stages && stage < tiles; ++stage) fetch(stage, stage);
  }
  __syncthreads();
  CUTE_NO_UNROLL
  for (int tile = 0; tile < tiles; ++tile) {
    int const stage = tile % stages, parity = tile / stages % 2;
    Full::wait(&storage.full[stage], parity);
    warpgroup_fence_operand(tCrC);
    warpgroup_arrive();
    gemm(mma, tCrA(_, _, _, stage), tCrB(_, _, _, stage), tCrC);
    warpgroup_commit_batch();
    warpgroup_wait<0>();
    warpgroup_fence_operand(tCrC);
    Read::arrive(&storage.read[stage]);
    if (threadIdx.x == 0 && tile + stages < tiles) {
      Read::wait(&storage.read[stage], parity);
      fetch(tile + stages, stage);
    }
  }
  copy(tCrC, tCgC);
}

template <bool TN>
void launch(int m, int n, int k, half_t const* A, half_t const* B, half_t* C) {
  auto mA = make_tensor(make_gmem_ptr(A), make_shape(m, k), strides<TN>(m, k));
  auto mB = make_tensor(make_gmem_ptr(B), make_shape(n, k), strides<TN>(n, k));
  auto piece = conditional_return<TN>(GMMA::Layout_K_SW128_Atom<half_t>{},
                                      GMMA::Layout_MN_SW128_Atom<half_t>{});
  auto shared = tile_to_shape(piece, Shape<_128, _64, _3>{});
  auto load_a = make_tma_atom(SM90_TMA_LOAD{}, mA, shared(_, _, 0), Shape<_128, _64>{});
  auto load_b = make_tma_atom(SM90_TMA_LOAD{}, mB, shared(_, _, 0), Shape<_128, _64>{});
  constexpr auto major = TN ? GMMA::Major::K : GMMA::Major::MN;
  auto mma = make_tiled_mma(SM90_64x64x16_F16F16F16_SS<major, major>{});
  auto kernel = hgemm<decltype(load_a), decltype(load_b), decltype(shared), decltype(mma)>;
  int const bytes = sizeof(Storage<decltype(shared)>);
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<dim3(m / 128, n / 128), 128, bytes>>>(m, n, k, C, load_a, load_b, shared, mma);
}

int main(int argc, char** argv) {
  return program<half_t>(argc, argv, launch<true>, launch<false>);
}
