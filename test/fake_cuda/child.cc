// A program on the CUDA driver that process_test runs: child LIBRARY WHAT. It knows nothing of the fake, loads the
// driver with dlopen, and does WHAT, whose answers it prints.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace {

void* library;

template <typename Function>
Function* Symbol(const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

CUcontext context;
CUdeviceptr memory;

CUresult Start() {
  CUresult code = Symbol<CUresult(unsigned)>("cuInit")(0);
  if (code != CUDA_SUCCESS) return code;
  code = Symbol<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context, 0);
  if (code != CUDA_SUCCESS) return code;
  code = Symbol<CUresult(CUcontext)>("cuCtxSetCurrent")(context);
  return code != CUDA_SUCCESS ? code : Symbol<CUresult(CUdeviceptr*, size_t)>("cuMemAlloc_v2")(&memory, 100);
}

CUresult Free() { return Symbol<CUresult(CUdeviceptr)>("cuMemFree_v2")(memory); }

CUresult Release() { return Symbol<CUresult(CUdevice)>("cuDevicePrimaryCtxRelease_v2")(0); }

CUresult Fill() {
  return Symbol<CUresult(CUdeviceptr, unsigned char, size_t, CUstream)>("cuMemsetD8Async")(memory, 1, 100, nullptr);
}

// Built before cuInit is called, so destroyed after the driver's exit handler has run.
struct FreesAtExit {
  bool wanted = false;
  ~FreesAtExit() {
    if (!wanted) return;
    std::printf("at exit %d\n", Free());
    std::fflush(stdout);
  }
} frees_at_exit;

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::printf("%s\n", dlerror());
    return 2;
  }
  std::string what = argv[2];
  if (what == "symbols") {
    for (int i = 3; i < argc; ++i) std::printf("%s %s\n", argv[i], dlsym(library, argv[i]) ? "found" : "missing");
    return 0;
  }
  std::printf("start %d\n", Start());
  if (what == "clean") {
    std::printf("free %d\n", Free());
    std::printf("release %d\n", Release());
  } else if (what == "no release") {
    std::printf("free %d\n", Free());
  } else if (what == "double free") {
    Free();
    std::printf("free %d\n", Free());
    Release();
  } else if (what == "frees at exit" || what == "exit from a thread") {
    frees_at_exit.wanted = true;
    Fill();  // the worker, if that is the schedule, is running by now
    std::fflush(stdout);
    if (what == "exit from a thread") std::thread([] { std::exit(0); }).join();
  } else if (what == "unload") {
    Free();
    Release();
    std::printf("dlclose %d\n", dlclose(library));
  }
  return 0;
}
