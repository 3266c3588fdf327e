// What CuTe C++ makes of the tilings of examples/porting/: every layout, as it prints it.
//
// A host program: `python3 benchmarks/porting/record_layouts.py --cute INCLUDE` compiles and runs it.
// Static numbers are printed with an underscore before them, run-time ones without.

#include <cute/tensor.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cute/atom/copy_atom.hpp>

using namespace cute;

char const* kernel = "";
char const* majors = "";

template <class T>
void row(char const* name, T const& tensor) {
  printf("%s %s %s ", kernel, majors, name);
  print(tensor.layout());
  printf("\n");
}
#define SHOW(x) row(#x, x)

// A and B as both kinds of GEMM take them: (rows, depth) with neighbours along K, or along the rows.
template <class T>
auto matrix(int rows, int depth, bool_constant<true>) {
  return make_tensor(make_gmem_ptr(static_cast<T*>(nullptr)), make_shape(rows, depth),
                     make_stride(depth, Int<1>{}));
}
template <class T>
auto matrix(int rows, int depth, bool_constant<false>) {
  return make_tensor(make_gmem_ptr(static_cast<T*>(nullptr)), make_shape(rows, depth),
                     make_stride(Int<1>{}, rows));
}

template <class T, class Layout>
auto shared(Layout layout) {
  return make_tensor(make_smem_ptr(static_cast<T*>(nullptr)), layout);
}

template <class T, bool TN, class Tile, class Copy, class Shared, class Mma>
void common(Tile tile, Copy copy, Shared layout, Mma mma) {
  int const m = 256, n = 256, k = 192, thread = 0;
  auto A = matrix<T>(m, k, bool_constant<TN>{});
  auto C = matrix<T>(m, n, bool_constant<false>{});
  auto gA = local_tile(A, select<0, 2>(tile), make_coord(1, _));
  auto gC = local_tile(C, select<0, 1>(tile), make_coord(1, 1));
  auto sA = shared<T>(layout);
  auto part = copy.get_slice(thread);
  auto tAgA = part.partition_S(gA);
  auto tAsA = part.partition_D(sA);
  auto mine = mma.get_slice(thread);
  auto tCgC = mine.partition_C(gC);
  auto tCrC = partition_fragment_C(mma, select<0, 1>(tile));
  SHOW(gA); SHOW(gC); SHOW(sA); SHOW(tAgA); SHOW(tAsA); SHOW(tCgC); SHOW(tCrC);
}

template <bool TN>
void tiled_copy() {
  auto S = matrix<float>(131, 67, bool_constant<TN>{});
  auto gS = local_tile(S, Shape<_128, _64>{}, make_coord(1, 1));
  auto cS = local_tile(make_identity_tensor(shape(S)), Shape<_128, _64>{}, make_coord(1, 1));
  auto width = conditional_return<TN>(Int<1>{}, Int<4>{});
  using Vector = std::conditional_t<TN, uint32_t, uint128_t>;
  auto copy = make_tiled_copy(Copy_Atom<UniversalCopy<Vector>, float>{}, Layout<Shape<_32, _8>>{},
                              make_layout(make_shape(width, Int<1>{})));
  auto part = copy.get_slice(0);
  auto tSgS = part.partition_S(gS);
  auto tScS = part.partition_S(cS);
  auto tSrS = make_fragment_like(tSgS);
  SHOW(gS); SHOW(cS); SHOW(tSgS); SHOW(tScS); SHOW(tSrS);
}

template <bool TN>
void sgemm() {
  auto tile = Shape<_128, _128, _8>{};
  auto mma = make_tiled_mma(UniversalFMA<float>{}, Layout<Shape<_16, _16, _1>>{});
  auto layout = conditional_return<TN>(Layout<Shape<_128, _8>, Stride<_1, Int<129>>>{},
                                       Layout<Shape<_128, _8>>{});
  auto copy = conditional_return<TN>(
      make_tiled_copy(Copy_Atom<UniversalCopy<float>, float>{},
                      Layout<Shape<_32, _8>, Stride<_8, _1>>{}, Layout<Shape<_1, _1>>{}),
      make_tiled_copy(Copy_Atom<UniversalCopy<uint128_t>, float>{}, Layout<Shape<_32, _8>>{},
                      Layout<Shape<_4, _1>>{}));
  common<float, TN>(tile, copy, layout, mma);
  auto sA = shared<float>(layout);
  auto tAsA = copy.get_slice(0).partition_D(sA);
  auto tArA = make_fragment_like(tAsA);
  auto tCsA = mma.get_slice(0).partition_A(sA);
  auto tCsB = mma.get_slice(0).partition_B(sA);
  SHOW(tArA); SHOW(tCsA); SHOW(tCsB);
}

template <bool TN>
auto async_copy() {
  using Atom = Copy_Atom<SM80_CP_ASYNC_CACHEALWAYS<uint128_t>, half_t>;
  return conditional_return<TN>(
      make_tiled_copy(Atom{}, Layout<Shape<_16, _8>, Stride<_8, _1>>{}, Layout<Shape<_1, _8>>{}),
      make_tiled_copy(Atom{}, Layout<Shape<_16, _8>>{}, Layout<Shape<_8, _1>>{}));
}

template <bool TN>
void hgemm_sm80() {
  auto tile = Shape<_128, _128, _64>{};
  auto mma = make_tiled_mma(SM80_16x8x16_F16F16F16F16_TN{}, Layout<Shape<_2, _2>>{},
                            Tile<_32, _32, _16>{});
  auto piece = conditional_return<TN>(
      composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, Shape<_8, _8>>, Stride<_8, Stride<_1, _64>>>{}),
      composition(Swizzle<3, 3, 3>{}, Layout<Shape<_64, _8>>{}));
  auto layout = tile_to_shape(piece, Shape<_128, _64, _3>{});
  common<half_t, TN>(tile, async_copy<TN>(), layout, mma);
  using Load = std::conditional_t<TN, SM75_U32x4_LDSM_N, SM75_U16x8_LDSM_T>;
  auto sA = shared<half_t>(layout);
  auto mine = mma.get_slice(0);
  auto tCrA = mine.partition_fragment_A(sA(_, _, 0));
  auto tCrB = mine.partition_fragment_B(sA(_, _, 0));
  auto load_a = make_tiled_copy_A(Copy_Atom<Load, half_t>{}, mma).get_slice(0);
  auto load_b = make_tiled_copy_B(Copy_Atom<Load, half_t>{}, mma).get_slice(0);
  auto tXsA = load_a.partition_S(sA);
  auto tXrA = load_a.retile_D(tCrA);
  auto tXsB = load_b.partition_S(sA);
  auto tXrB = load_b.retile_D(tCrB);
  SHOW(tCrA); SHOW(tCrB); SHOW(tXsA); SHOW(tXrA); SHOW(tXsB); SHOW(tXrB);
}

template <bool TN>
void hgemm_sm90() {
  auto tile = Shape<_128, _128, _64>{};
  constexpr auto major = TN ? GMMA::Major::K : GMMA::Major::MN;
  auto mma = make_tiled_mma(SM90_64x64x16_F16F16F16_SS<major, major>{});
  auto piece = conditional_return<TN>(GMMA::Layout_K_SW128_Atom<half_t>{},
                                      GMMA::Layout_MN_SW128_Atom<half_t>{});
  auto layout = tile_to_shape(piece, Shape<_128, _64, _3>{});
  common<half_t, TN>(tile, async_copy<TN>(), layout, mma);
  auto sA = shared<half_t>(layout);
  auto tCsA = mma.get_slice(0).partition_A(sA);
  auto tCsB = mma.get_slice(0).partition_B(sA);
  SHOW(tCsA); SHOW(tCsB);
}

template <class F, class G>
void both(char const* name, F tn, G nt) {
  kernel = name;
  majors = "TN"; tn();
  majors = "NT"; nt();
}

int main() {
  both("tiled_copy", tiled_copy<true>, tiled_copy<false>);
  both("sgemm", sgemm<true>, sgemm<false>);
  both("hgemm_sm80", hgemm_sm80<true>, hgemm_sm80<false>);
  both("hgemm_sm90", hgemm_sm90<true>, hgemm_sm90<false>);
}
