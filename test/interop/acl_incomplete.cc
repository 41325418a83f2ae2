// A libascendcl of a CANN from before allocators could be registered.
extern "C" {
__attribute__((visibility("default"))) void* aclrtAllocatorCreateDesc() { return nullptr; }
__attribute__((visibility("default"))) int aclrtSynchronizeStream(void*) { return 0; }
}
