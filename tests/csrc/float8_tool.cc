// device/float8.cuh on the host: `float8_tool encode DTYPE SATURATE` reads float32s and writes codes, `decode DTYPE`
// the other way round.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "device/float8.cuh"

int main(int argc, char** argv) {
  using namespace cuvil::device;
  Float8Format format;
  if (argc < 3 || !float8_format(static_cast<cuvil::DType>(std::atoi(argv[2])), &format)) return 2;
  if (std::string(argv[1]) == "encode") {
    const bool saturate = std::atoi(argv[3]) != 0;
    for (float x; std::fread(&x, sizeof(x), 1, stdin) == 1;)
      std::putchar(static_cast<int>(encode_float8(x, format, saturate)));
  } else {
    for (int code; (code = std::getchar()) != EOF;) {
      const float x = decode_float8(static_cast<uint32_t>(code), format);
      std::fwrite(&x, sizeof(x), 1, stdout);
    }
  }
}
