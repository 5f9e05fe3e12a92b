// Whether kernels may start before the one in front of them in the stream has ended (device/launch.cuh).
#pragma once

namespace cuvil {

// True when every GPU of the machine can (compute capability 9.0), unless CUVIL_EARLY_LAUNCH=0. Decided once.
bool early_launch();

}  // namespace cuvil
