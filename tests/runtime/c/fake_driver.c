/* A driver library that writes down what it is asked: one line for each call. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void hex(const void *data, int size) {
    for (int i = 0; i < size; i++) printf("%02x", ((const unsigned char *)data)[i]);
}

CUresult cuInit(unsigned flags) { return (CUresult)(flags != 0); }

CUresult cuGetErrorString(CUresult code, const char **text) {
    *text = code == CUDA_ERROR_INVALID_VALUE ? "said the driver" : NULL;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    *module = (CUmodule)(uintptr_t)1;
    printf("load ");
    hex(image, 16);
    printf("\n");
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
    printf("unload %d\n", (int)(uintptr_t)module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = (CUfunction)(uintptr_t)2;
    printf("function %d %s\n", (int)(uintptr_t)module, name);
    return strcmp(name, "refused") ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    printf("attribute %d %d %d\n", (int)(uintptr_t)function, (int)attribute, value);
    return CUDA_SUCCESS;
}

/* KDSL_SIZES holds the bytes of each parameter: "8,4,128". */
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **params, void **more) {
    char sizes[256];
    int index = 0;
    (void)more;
    printf("launch %d grid %u %u %u block %u %u %u shared %u stream %d", (int)(uintptr_t)function,
           c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
           c->sharedMemBytes, (int)(uintptr_t)c->hStream);
    for (unsigned i = 0; i < c->numAttrs; i++)
        printf(" attribute %d %u %u %u", (int)c->attrs[i].id, c->attrs[i].value.clusterDim.x,
               c->attrs[i].value.clusterDim.y, c->attrs[i].value.clusterDim.z);
    printf("\nparams");
    strncpy(sizes, getenv("KDSL_SIZES"), sizeof sizes - 1);
    for (char *word = strtok(sizes, ","); word; word = strtok(NULL, ",")) {
        printf(" ");
        hex(params[index++], atoi(word));
    }
    printf("\n");
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *address, const cuuint64_t *sizes, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    memset(map, 0xAB, sizeof *map);
    printf("map %d %u %llu sizes", (int)type, rank, (unsigned long long)(uintptr_t)address);
    for (cuuint32_t i = 0; i < rank; i++) printf(" %llu", (unsigned long long)sizes[i]);
    printf(" strides");
    for (cuuint32_t i = 0; i + 1 < rank; i++) printf(" %llu", (unsigned long long)strides[i]);
    printf(" box");
    for (cuuint32_t i = 0; i < rank; i++) printf(" %u", box[i]);
    printf(" steps");
    for (cuuint32_t i = 0; i < rank; i++) printf(" %u", steps[i]);
    printf(" words %d %d %d %d\n", (int)interleave, (int)swizzle, (int)promotion, (int)fill);
    return CUDA_SUCCESS;
}
