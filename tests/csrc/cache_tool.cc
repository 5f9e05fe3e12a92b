// `cache_tool write <source> <image>` puts a compiled kernel into the disk cache; `cache_tool read <source>` prints
// "hit <image>" or "miss"; `cache_tool dir <sub>` prints the cache directory or "none".
#include <iostream>

#include "core/cache_dir.h"
#include "jit/cubin_cache.h"

int main(int argc, char** argv) {
  const std::string command = argc > 2 ? argv[1] : "";
  if (command == "dir") {
    const auto dir = cuvil::cache_dir(argv[2]);
    std::cout << (dir ? dir->string() : "none") << "\n";
    return 0;
  }
  if (command.empty()) return 2;
  const cuvil::jit::CacheKey key{argv[2], "sm_90", "13.0"};
  if (command == "write" && argc > 3) {
    const std::string image = argv[3];
    cuvil::jit::write_cached(key, {image.begin(), image.end()});
  } else {
    const auto image = cuvil::jit::read_cached(key);
    std::cout << (image ? "hit " + std::string(image->begin(), image->end()) : "miss") << "\n";
  }
}
