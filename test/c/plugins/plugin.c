/* One source, many plugins: each is this file with one macro set (meson.build). Running code of one that must not run
 * is an abort. */
#include <stdlib.h>
#include <unistd.h>

#if defined(WRONG_VERSION) || defined(ZERO_VERSION) || defined(LONG_VERSION) || defined(FUNCTION_VERSION)
/* The header's declaration of the symbol is another one. */
#define packalloc_plugin_abi_version packalloc_plugin_abi_version_of_the_header
#include "packalloc/c/plugin.h"
#undef packalloc_plugin_abi_version
#else
#include "packalloc/c/plugin.h"
#endif

#if defined(WRONG_VERSION)
extern PACKALLOC_PLUGIN_EXPORT const uint32_t packalloc_plugin_abi_version;
const uint32_t packalloc_plugin_abi_version = 4711;
#elif defined(ZERO_VERSION)
extern PACKALLOC_PLUGIN_EXPORT uint32_t packalloc_plugin_abi_version;
uint32_t packalloc_plugin_abi_version = 0; /* in .bss: not in the file */
#elif defined(LONG_VERSION)
extern PACKALLOC_PLUGIN_EXPORT const uint64_t packalloc_plugin_abi_version;
const uint64_t packalloc_plugin_abi_version = 1;
#elif defined(FUNCTION_VERSION)
PACKALLOC_PLUGIN_EXPORT uint32_t packalloc_plugin_abi_version(void) { return 1; }
#elif !defined(NO_VERSION)
PACKALLOC_PLUGIN_DEFINE_ABI_VERSION;
#endif

#if defined(WRONG_VERSION) || defined(ZERO_VERSION) || defined(LONG_VERSION) || defined(FUNCTION_VERSION) || \
    defined(NO_VERSION) || defined(NO_BACKEND)
#define MUST_NOT_RUN
static void __attribute__((constructor)) constructor(void) { abort(); }
#endif

static packalloc_status open_device(void* self, const char* target, const packalloc_record** out) {
  (void)self;
  (void)target;
#if defined(OPEN_FAILS)
  (void)out;
  return PACKALLOC_UNAVAILABLE;
#elif defined(OPEN_GARBAGE)
  (void)out;
  return 4711;
#elif defined(OPEN_NULL)
  *out = NULL;
  return PACKALLOC_OK;
#else
  {
    static packalloc_record record = PACKALLOC_RECORD_INIT;
#if defined(OPEN_SMALL)
    record.struct_size = 8;
#endif
    *out = &record; /* with every required slot NULL */
    return PACKALLOC_OK;
  }
#endif
}

static packalloc_status list_devices(void* self, packalloc_device_visitor visit, void* user_data) {
  (void)self;
#if defined(LIST_SMALL)
  {
    packalloc_device device = PACKALLOC_DEVICE_INIT;
    device.struct_size = 8;
    visit(user_data, &device);
    visit(user_data, NULL);
    return PACKALLOC_OK;
  }
#else
  {
    packalloc_device device = PACKALLOC_DEVICE_INIT; /* every text NULL */
    visit(user_data, &device);
    return PACKALLOC_UNAVAILABLE;
  }
#endif
}

static const char* last_error(void* self) {
  (void)self;
  return "the plugin says why";
}

#if defined(WAITS)
static void wait_for_test(void) {
  const char* inside = getenv("PLUGIN_INSIDE");
  const char* go_on = getenv("PLUGIN_GO_ON");
  char byte = 0;
  if (inside == NULL || go_on == NULL) return;
  if (write(atoi(inside), &byte, 1) != 1 || read(atoi(go_on), &byte, 1) != 1) abort();
}
#endif

#if defined(NO_BACKEND)
PACKALLOC_PLUGIN_EXPORT const int packalloc_plugin_backend_is_missing = 1;
#else
PACKALLOC_PLUGIN_EXPORT const packalloc_backend* packalloc_plugin_backend(void) {
#if defined(MUST_NOT_RUN)
  abort();
#elif defined(NULL_BACKEND)
  return NULL;
#else
  static packalloc_backend backend = PACKALLOC_BACKEND_INIT;
#if defined(WAITS)
  wait_for_test();
#endif
  backend.name = NAME;
  backend.open = open_device;
  backend.list_devices = list_devices;
  backend.last_error = last_error;
#if defined(SMALL_BACKEND)
  backend.struct_size = 8;
#elif defined(HUGE_BACKEND)
  backend.struct_size = (size_t)-1;
#elif defined(NO_NAME)
  backend.name = NULL;
#elif defined(NO_OPEN)
  backend.open = NULL;
#endif
  return &backend;
#endif
}
#endif
