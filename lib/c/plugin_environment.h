// PACKALLOC_PLUGINS: the plugins that a program's user adds.
#ifndef PACKALLOC_LIB_C_PLUGIN_ENVIRONMENT_H_
#define PACKALLOC_LIB_C_PLUGIN_ENVIRONMENT_H_

namespace packalloc {

// Loads them, in the process's first call; later and nested calls do nothing. What cannot be loaded is a warning.
void LoadPluginsOfEnvironment();

}  // namespace packalloc

#endif  // PACKALLOC_LIB_C_PLUGIN_ENVIRONMENT_H_
