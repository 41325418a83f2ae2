/* A backend in a shared library of its own: what such a plugin exports. C99; a plugin links nothing of packalloc.
 * packalloc_load_plugin, packalloc::LoadPlugin and PACKALLOC_PLUGINS in the environment load one.
 *
 *   static packalloc_status open_device(void* self, const char* target, const packalloc_record** out) {
 *     *out = &heap;                                                    // packalloc/c/record.h
 *     return PACKALLOC_OK;
 *   }
 *   PACKALLOC_PLUGIN_DEFINE_ABI_VERSION;
 *   PACKALLOC_PLUGIN_EXPORT const packalloc_backend* packalloc_plugin_backend(void) {
 *     static packalloc_backend backend = PACKALLOC_BACKEND_INIT;
 *     backend.name = "HEAP";
 *     backend.open = open_device;
 *     return &backend;
 *   }
 *
 * examples/plugin_backend.c is a whole one; docs/plugins.md explains. */
#ifndef PACKALLOC_C_PLUGIN_H_
#define PACKALLOC_C_PLUGIN_H_

#include "packalloc/c/record.h"
#include "packalloc/c/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PACKALLOC_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define PACKALLOC_PLUGIN_EXPORT
#endif

/* Changes only when a plugin built before could not be used any more; what grows is told by struct_size. Must equal the
 * library's. */
#define PACKALLOC_PLUGIN_ABI_VERSION 1

/* A backend, as packalloc::Backend. Static, or valid as long as the process: a loaded plugin is never unloaded. */
typedef struct packalloc_backend {
  size_t struct_size;
  void* self;
  const char* name;     /* "HEAP": upper-case letters and digits, starting with a letter, not taken yet */
  int32_t default_rank; /* packalloc_open_default tries backends with a rank above 0, smallest first */
  uint8_t reserved[4];  /* 0 */

  /* Required: the allocator of that device. `target` is what follows the colon of the device name ("" for none). *out
   * is copied; its `release` is called once when the last user is gone (not for a record that is refused).
   * PACKALLOC_UNAVAILABLE where this machine cannot, PACKALLOC_NOT_FOUND for a device that is not there,
   * PACKALLOC_INVALID_ARGUMENT for a target that it does not understand. */
  packalloc_status (*open)(void* self, const char* target, const packalloc_record** out);

  /* Optional. */

  /* Calls `visit` for each device; for none, once with available 0 and the reason. NULL: the backend's name alone. */
  packalloc_status (*list_devices)(void* self, packalloc_device_visitor visit, void* user_data);
  /* A sentence for the error that this thread's last call of `open` or `list_devices` answered, or NULL. */
  const char* (*last_error)(void* self);
} packalloc_backend;
#define PACKALLOC_BACKEND_INIT \
  { sizeof(packalloc_backend), NULL, NULL, 0, {0, 0, 0, 0}, NULL, NULL, NULL }

/* Exported by the plugin. Read from the file before the plugin is loaded, so that no code of a plugin of another
 * version runs, not even its constructors. */
extern PACKALLOC_PLUGIN_EXPORT const uint32_t packalloc_plugin_abi_version;
#define PACKALLOC_PLUGIN_DEFINE_ABI_VERSION \
  PACKALLOC_PLUGIN_EXPORT const uint32_t packalloc_plugin_abi_version = PACKALLOC_PLUGIN_ABI_VERSION

/* Exported by the plugin: its backend, or NULL where it has none. Called once for each time that it is loaded. */
PACKALLOC_PLUGIN_EXPORT const packalloc_backend* packalloc_plugin_backend(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PACKALLOC_C_PLUGIN_H_ */
