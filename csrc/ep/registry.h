// The ops that this library serves, as ORT's kernel registry and as a look-up for GetCapability.
#pragma once

#include <string>

#include "ep/ort.h"
#include "ops/op.h"

namespace cuvil::ep {

// The entry whose versions hold `since`, or nullptr with the reason in `why`.
const OpEntry* find_op(const std::string& domain, const std::string& type, int since, std::string* why);

// One kernel definition an entry. Throws when two entries of one op overlap.
Ort::KernelRegistry make_kernel_registry();

}  // namespace cuvil::ep
