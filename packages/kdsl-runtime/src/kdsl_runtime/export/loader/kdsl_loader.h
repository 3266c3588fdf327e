/* Loads and launches kernels that `kdsl export` wrote: the CUDA driver's library, found at run time,
   and nothing else. Compile with the folder of cuda.h in the path, and link with -ldl. */
#ifndef KDSL_LOADER_H
#define KDSL_LOADER_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

/* Every function gives 0 for success, a CUresult, or one of these. */
enum {
    KDSL_NO_DRIVER = -1,    /* libcuda.so.1 is missing, or lacks a function */
    KDSL_NO_FILE = -2,      /* the cubin cannot be read */
    KDSL_BAD_ARGUMENT = -3, /* an argument lacks a fact that the kernel was built for */
};

typedef struct {
    CUmodule module;
    CUfunction function;
} kdsl_kernel;

typedef struct {
    unsigned grid[3];
    unsigned block[3];
    unsigned cluster[3]; /* zeros: no clusters */
    unsigned shared_bytes;
} kdsl_shape;

typedef struct {
    CUtensorMapDataType type;
    cuuint32_t rank;
    cuuint64_t address;
    cuuint64_t sizes[5];   /* in elements, innermost first */
    cuuint64_t strides[5]; /* in bytes, from the second dimension on */
    cuuint32_t box[5];
    cuuint32_t steps[5];
    CUtensorMapSwizzle swizzle;
    CUtensorMapL2promotion promotion;
    CUtensorMapFloatOOBfill fill;
} kdsl_tensor;

/* Loads a cubin in the caller's current context, from memory or from a file. */
int kdsl_load(kdsl_kernel *kernel, const void *image, const char *entry, unsigned shared_bytes);
int kdsl_load_file(kdsl_kernel *kernel, const char *path, const char *entry, unsigned shared_bytes);
int kdsl_unload(kdsl_kernel *kernel);

/* Puts a launch on a stream and returns; `params` points to each parameter in turn. */
int kdsl_launch(const kdsl_kernel *kernel, const kdsl_shape *shape, void **params, CUstream stream);

int kdsl_encode(CUtensorMap *map, const kdsl_tensor *tensor);

/* What a code means, in words. */
const char *kdsl_error(int code);

#endif
