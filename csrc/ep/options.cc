#include "ep/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "core/error.h"

namespace cuvil::ep {
namespace {

constexpr std::string_view kKnown =
    "device_id, enable_cuda_graph, min_num_runs_before_cuda_graph_capture, max_captured_graphs, user_compute_stream, "
    "gpu_mem_limit, use_tf32, stream_aware, shapes_on_cpu, debug_sync, placement_file";

template <typename T>
T parse_number(std::string_view key, std::string_view text, T lowest, T highest) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size() && value >= lowest && value <= highest, "option ",
          key, "='", text, "' is not an integer in [", lowest, ", ", highest, "]");
  return value;
}

bool parse_bool(std::string_view key, std::string_view text) {
  if (text == "1" || text == "true" || text == "True") return true;
  if (text == "0" || text == "false" || text == "False") return false;
  fail(ErrorKind::kInvalidArgument, "option ", key, "='", text, "' is neither 0 nor 1");
}

void set(Options& o, std::string_view key, std::string_view text) {
  if (key == "device_id") {
    o.device_id = parse_number<int>(key, text, 0, 1023);
  } else if (key == "enable_cuda_graph") {
    o.enable_cuda_graph = parse_bool(key, text);
  } else if (key == "min_num_runs_before_cuda_graph_capture") {
    // ORT repeats a run at most 8 times until it is captured, and a capture may need a second try; ops need two
    // uncaptured runs to tune themselves.
    o.min_num_runs_before_cuda_graph_capture = parse_number<int>(key, text, 2, 6);
  } else if (key == "max_captured_graphs") {
    o.max_captured_graphs = parse_number<int>(key, text, 1, 1 << 20);
  } else if (key == "user_compute_stream") {
    o.user_compute_stream = reinterpret_cast<void*>(parse_number<uintptr_t>(key, text, 0, UINTPTR_MAX));
  } else if (key == "gpu_mem_limit") {
    o.gpu_mem_limit = parse_number<size_t>(key, text, 0, SIZE_MAX);
  } else if (key == "use_tf32") {
    o.use_tf32 = parse_bool(key, text);
  } else if (key == "stream_aware") {
    o.stream_aware = parse_bool(key, text);
  } else if (key == "shapes_on_cpu") {
    o.shapes_on_cpu = parse_bool(key, text);
  } else if (key == "debug_sync") {
    o.debug_sync = parse_bool(key, text);
  } else if (key == "placement_file") {
    o.placement_file = text;
  } else {
    fail(ErrorKind::kInvalidArgument, "unknown option '", key, "'; known: ", kKnown);
  }
}

std::string option_prefix() {
  std::string prefix = std::string("ep.") + kEpName + ".";
  std::transform(prefix.begin(), prefix.end(), prefix.begin(), [](unsigned char c) { return std::tolower(c); });
  return prefix;
}

}  // namespace

Options read_options(const OrtSessionOptions* session_options) {
  Options o;
  OrtKeyValuePairs* raw = nullptr;
  ort_check(api().GetSessionOptionsConfigEntries(session_options, &raw));
  const Ort::KeyValuePairs entries(raw);
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  size_t count = 0;
  api().GetKeyValuePairs(raw, &keys, &values, &count);
  const std::string prefix = option_prefix();
  bool env_allocators = false;
  for (size_t i = 0; i < count; ++i) {
    const std::string_view key = keys[i];
    if (key == "session.use_env_allocators") env_allocators = std::string_view(values[i]) == "1";
    if (key.substr(0, prefix.size()) == prefix) set(o, key.substr(prefix.size()), values[i]);
  }
  const char* debug = std::getenv("CUVIL_DEBUG_SYNC");
  if (debug && std::strcmp(debug, "0") != 0) o.debug_sync = true;
  require(
      !(o.stream_aware && o.enable_cuda_graph),
      "options stream_aware=1 and enable_cuda_graph=1 exclude each other: graphs are captured on the EP's own stream");
  require(!(o.stream_aware && o.user_compute_stream),
          "options stream_aware=1 and user_compute_stream exclude each other: ORT creates the streams with the first");
  require(
      !(env_allocators && o.enable_cuda_graph),
      "session.use_env_allocators=1 and enable_cuda_graph=1 exclude each other: the memory of a captured graph must "
      "belong to the session");
  return o;
}

}  // namespace cuvil::ep
