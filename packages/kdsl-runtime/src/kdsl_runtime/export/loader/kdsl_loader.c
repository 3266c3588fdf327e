#include "kdsl_loader.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
    CUresult (*init)(unsigned);
    CUresult (*error)(CUresult, const char **);
    CUresult (*load)(CUmodule *, const void *);
    CUresult (*unload)(CUmodule);
    CUresult (*function)(CUfunction *, CUmodule, const char *);
    CUresult (*set)(CUfunction, CUfunction_attribute, int);
    CUresult (*launch)(const CUlaunchConfig *, CUfunction, void **, void **);
    CUresult (*encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                       const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                       CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                       CUtensorMapFloatOOBfill);
} driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int found = KDSL_NO_DRIVER;

static int find(void *library, const char *name, void *place) {
    *(void **)place = dlsym(library, name);
    return *(void **)place != NULL;
}

static void open_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library != NULL && find(library, "cuInit", &driver.init) &&
        find(library, "cuGetErrorString", &driver.error) &&
        find(library, "cuModuleLoadData", &driver.load) &&
        find(library, "cuModuleUnload", &driver.unload) &&
        find(library, "cuModuleGetFunction", &driver.function) &&
        find(library, "cuFuncSetAttribute", &driver.set) &&
        find(library, "cuLaunchKernelEx", &driver.launch) &&
        find(library, "cuTensorMapEncodeTiled", &driver.encode))
        found = (int)driver.init(0);
}

int kdsl_load(kdsl_kernel *kernel, const void *image, const char *entry, unsigned shared_bytes) {
    int code;
    pthread_once(&once, open_driver);
    if (found != 0) return found;
    code = (int)driver.load(&kernel->module, image);
    if (code != 0) return code;
    code = (int)driver.function(&kernel->function, kernel->module, entry);
    if (code == 0 && shared_bytes > 0)
        code = (int)driver.set(kernel->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                               (int)shared_bytes);
    if (code != 0) driver.unload(kernel->module);
    return code;
}

static void *read_file(const char *path) {
    void *data = NULL;
    long size;
    FILE *file = fopen(path, "rb");
    if (file == NULL) return NULL;
    if (fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) > 0 && fseek(file, 0, SEEK_SET) == 0) {
        data = malloc((size_t)size);
        if (data != NULL && fread(data, 1, (size_t)size, file) != (size_t)size) {
            free(data);
            data = NULL;
        }
    }
    fclose(file);
    return data;
}

int kdsl_load_file(kdsl_kernel *kernel, const char *path, const char *entry, unsigned shared_bytes) {
    int code;
    void *image = read_file(path);
    if (image == NULL) return KDSL_NO_FILE;
    code = kdsl_load(kernel, image, entry, shared_bytes);
    free(image);
    return code;
}

int kdsl_unload(kdsl_kernel *kernel) { return found != 0 ? found : (int)driver.unload(kernel->module); }

int kdsl_launch(const kdsl_kernel *kernel, const kdsl_shape *shape, void **params, CUstream stream) {
    CUlaunchConfig config = {0};
    CUlaunchAttribute cluster = {0};
    if (found != 0) return found;
    config.gridDimX = shape->grid[0];
    config.gridDimY = shape->grid[1];
    config.gridDimZ = shape->grid[2];
    config.blockDimX = shape->block[0];
    config.blockDimY = shape->block[1];
    config.blockDimZ = shape->block[2];
    config.sharedMemBytes = shape->shared_bytes;
    config.hStream = stream;
    if (shape->cluster[0] > 0) {
        cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        cluster.value.clusterDim.x = shape->cluster[0];
        cluster.value.clusterDim.y = shape->cluster[1];
        cluster.value.clusterDim.z = shape->cluster[2];
        config.attrs = &cluster;
        config.numAttrs = 1;
    }
    return (int)driver.launch(&config, kernel->function, params, NULL);
}

int kdsl_encode(CUtensorMap *map, const kdsl_tensor *t) {
    if (found != 0) return found;
    return (int)driver.encode(map, t->type, t->rank, (void *)(uintptr_t)t->address, t->sizes,
                              t->strides, t->box, t->steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                              t->swizzle, t->promotion, t->fill);
}

const char *kdsl_error(int code) {
    const char *text = NULL;
    if (code == KDSL_NO_DRIVER) return "libcuda.so.1 is missing, or too old";
    if (code == KDSL_NO_FILE) return "the cubin cannot be read";
    if (code == KDSL_BAD_ARGUMENT) return "an argument lacks a fact that the kernel was built for";
    if (found == 0 && driver.error((CUresult)code, &text) == CUDA_SUCCESS) return text;
    return "an error without a description";
}
