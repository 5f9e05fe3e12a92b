// Messages into ORT's log, under the severity that the application chose.
#pragma once

#include <string>

#include "ep/ort.h"

namespace cuvil::ep {

class Log {
 public:
  explicit Log(const OrtLogger* logger) : logger_(logger) {}
  void info(const std::string& message) const noexcept { write(ORT_LOGGING_LEVEL_INFO, message); }
  void warning(const std::string& message) const noexcept { write(ORT_LOGGING_LEVEL_WARNING, message); }

 private:
  void write(OrtLoggingLevel level, const std::string& message) const noexcept {
    if (!logger_) return;
    const std::string text = std::string(kEpName) + ": " + message;
    Ort::Status ignored(api().Logger_LogMessage(logger_, level, text.c_str(), ORT_FILE, __LINE__, "cuvil"));
  }
  const OrtLogger* logger_;
};

}  // namespace cuvil::ep
