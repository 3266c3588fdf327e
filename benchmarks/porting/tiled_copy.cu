// The CuTe C++ kernel that examples/porting/tiled_copy.py ports: D = S, with predicates.
#include "harness.cuh"

using namespace cute;

template <int Vector, class StrideS, class StrideD>
__global__ void tiled_copy(int m, int n, float const* S, StrideS dS, float* D, StrideD dD) {
  auto mS = make_tensor(make_gmem_ptr(S), make_shape(m, n), dS);
  auto mD = make_tensor(make_gmem_ptr(D), make_shape(m, n), dD);
  auto block = make_coord(blockIdx.x, blockIdx.y);
  auto gS = local_tile(mS, Shape<_128, _64>{}, block);
  auto gD = local_tile(mD, Shape<_128, _64>{}, block);
  auto cS = local_tile(make_identity_tensor(shape(mS)), Shape<_128, _64>{}, block);

  using Atom = Copy_Atom<UniversalCopy<uint_bit_t<32 * Vector>>, float>;
  auto copy = make_tiled_copy(Atom{}, Layout<Shape<_32, _8>>{}, Layout<Shape<Int<Vector>, _1>>{});
  auto part = copy.get_slice(threadIdx.x);
  auto tSgS = part.partition_S(gS);
  auto tSgD = part.partition_D(gD);
  auto tScS = part.partition_S(cS);
  auto tSrS = make_fragment_like(tSgS);
  CUTE_UNROLL
  for (int j = 0; j < size<2>(tSgS); ++j) {
    CUTE_UNROLL
    for (int i = 0; i < size<1>(tSgS); ++i) {
      if (elem_less(tScS(0, i, j), shape(mS))) {
        cute::copy(copy, tSgS(_, i, j), tSrS(_, i, j));
        cute::copy(copy, tSrS(_, i, j), tSgD(_, i, j));
      }
    }
  }
}

template <bool TN>
void launch(int m, int n, int, float const* S, float const*, float* D) {
  dim3 grid(ceil_div(m, 128), ceil_div(n, 64));
  if (!TN && m % 4 == 0)
    tiled_copy<4><<<grid, 256>>>(m, n, S, strides<false>(m, n), D, strides<false>(m, n));
  else
    tiled_copy<1><<<grid, 256>>>(m, n, S, strides<TN>(m, n), D, strides<false>(m, n));
}

int main(int argc, char** argv) {
  return program<float>(argc, argv, launch<true>, launch<false>);
}
