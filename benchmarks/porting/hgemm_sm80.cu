// The CuTe C++ kernel that examples/porting/hgemm_sm80.py ports: cp.async, ldmatrix, 16 × 8 × 16.
#include "harness.cuh"

using namespace cute;

template <class Strides, class Copy, class Shared, class Load>
__global__ __launch_bounds__(128) void hgemm(int m, int n, int k, half_t const* A, half_t const* B,
                                             half_t* C, Strides dA, Strides dB, Copy copy_ab,
                                             Shared shared, Load load) {
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

  auto mma = make_tiled_mma(SM80_16x8x16_F16F16F16F16_TN{}, Layout<Shape<_2, _2>>{},
                            Tile<_32, _32, _16>{});
  auto multiplying = mma.get_slice(threadIdx.x);
  auto tCgC = multiplying.partition_C(gC);
  auto tCrA = multiplying.partition_fragment_A(sA(_, _, 0));
  auto tCrB = multiplying.partition_fragment_B(sB(_, _, 0));
  auto tCrC = multiplying.make_fragment_C(tCgC);
  clear(tCrC);
  auto load_a = make_tiled_copy_A(load, mma);
  auto load_b = make_tiled_copy_B(load, mma);
  auto tXsA = load_a.get_slice(threadIdx.x).partition_S(sA);
  auto tXrA = load_a.get_slice(threadIdx.x).retile_D(tCrA);
  auto tXsB = load_b.get_slice(threadIdx.x).partition_S(sB);
  auto tXrB = load_b.get_slice(threadIdx.x).retile_D(tCrB);

  int const tiles = size<2>(gA);
  auto fetch = [&](int tile, int stage) {
    tile = min(tile, tiles - 1);
    copy(copy_ab, tAgA(_, _, _, tile), tAsA(_, _, _, stage));
    copy(copy_ab, tBgB(_, _, _, tile), tBsB(_, _, _, stage));
    cp_async_fence();
  };
  auto read = [&](auto step, int stage) {
    copy(load_a, tXsA(_, _, step, stage), tXrA(_, _, step));
    copy(load_b, tXsB(_, _, step, stage), tXrB(_, _, step));
  };
  for (int stage = 0; stage < stages - 1; ++stage) fetch(stage, stage);
  cp_async_wait<stages - 2>();
  __syncthreads();
  read(_0{}, 0);
  constexpr int steps = size<2>(tCrA);
  int reading = 0, filling = stages - 1;
  CUTE_NO_UNROLL
  for (int tile = 0; tile < tiles; ++tile) {
    for_each(make_int_sequence<steps>{}, [&](auto step) {
      if constexpr (step == steps - 1) {
        cp_async_wait<stages - 2>();
        __syncthreads();
        reading = reading == stages - 1 ? 0 : reading + 1;
      }
      read(Int<(step + 1) % steps>{}, reading);
      if constexpr (step == 0) {
        fetch(tile + stages - 1, filling);
        filling = filling == stages - 1 ? 0 : filling + 1;
      }
      gemm(mma, tCrA(_, _, step), tCrB(_, _, step), tCrC);
    });
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
  auto piece = conditional_return<TN>(
      composition(Swizzle<3, 3, 3>{},
                  Layout<Shape<_8, Shape<_8, _8>>, Stride<_8, Stride<_1, _64>>>{}),
      composition(Swizzle<3, 3, 3>{}, Layout<Shape<_64, _8>>{}));
  auto shared = tile_to_shape(piece, Shape<_128, _64, _3>{});
  using Load = std::conditional_t<TN, SM75_U32x4_LDSM_N, SM75_U16x8_LDSM_T>;
  Copy_Atom<Load, half_t> load;
  auto kernel = hgemm<decltype(strides<TN>(m, k)), decltype(copy_ab), decltype(shared),
                      decltype(load)>;
  int const bytes = 2 * cosize(shared) * sizeof(half_t);
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<dim3(m / 128, n / 128), 128, bytes>>>(m, n, k, A, B, C, strides<TN>(m, k),
                                                 strides<TN>(n, k), copy_ab, shared, load);
}

int main(int argc, char** argv) {
  return program<half_t>(argc, argv, launch<true>, launch<false>);
}
