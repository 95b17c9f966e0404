// The objects that the wheel makes for a call, and running it.
#include "operators.hpp"

#include <mutex>
#include <set>
#include <string>

using namespace fake;

namespace {

std::mutex called_mutex;
std::set<std::string> called;

}  // namespace

int fake::run(const char* name, Executor* executor) {
  {
    const std::lock_guard lock(called_mutex);
    called.insert(name);
  }
  int code = 0;
  try {
    (*executor)();
  } catch (const std::logic_error&) {  // wrong dimensions, types, or an index out of range
    code = kInvalid;
  }
  delete executor;
  return code;
}

extern "C" {

// The operators that have run in this process, for tests: names between spaces.
const char* asap_fake_called() {
  static std::string names;
  const std::lock_guard lock(called_mutex);
  names.clear();
  for (const std::string& name : called) names += name + " ";
  return names.c_str();
}

aclTensor* aclCreateTensor(const std::int64_t* dims, std::uint64_t num_dims, int type,
                           const std::int64_t* strides, std::int64_t offset, int,
                           const std::int64_t*, std::uint64_t, void* data) {
  auto* tensor =
      new aclTensor{{dims, dims + num_dims}, {strides, strides + num_dims}, type, nullptr};
  tensor->data = static_cast<std::byte*>(data);
  if (offset != 0) {
    with_type(type, [&]<typename Element>(Element) {
      tensor->data += offset * static_cast<std::int64_t>(sizeof(Element));
    });
  }
  return tensor;
}
int aclDestroyTensor(const aclTensor* tensor) {
  delete tensor;
  return 0;
}
// Of a result whose size only the operator knows; the caller deletes them.
int aclGetViewShape(const aclTensor* tensor, std::int64_t** dims, std::uint64_t* num_dims) {
  *num_dims = tensor->dims.size();
  *dims = new std::int64_t[tensor->dims.size()];
  std::copy(tensor->dims.begin(), tensor->dims.end(), *dims);
  return 0;
}
aclScalar* aclCreateScalar(void* value, int type) {
  auto* scalar = new aclScalar{};
  with_type(type, [&]<typename Element>(Element) {
    scalar->value = static_cast<double>(*static_cast<Element*>(value));
  });
  return scalar;
}
int aclDestroyScalar(const aclScalar* scalar) {
  delete scalar;
  return 0;
}
aclTensorList* aclCreateTensorList(const aclTensor* const* tensors, std::uint64_t size) {
  return new aclTensorList{{tensors, tensors + size}};
}
int aclDestroyTensorList(const aclTensorList* list) {
  for (const aclTensor* tensor : list->tensors) delete tensor;
  delete list;
  return 0;
}
aclIntArray* aclCreateIntArray(const std::int64_t* values, std::uint64_t size) {
  return new aclIntArray{{values, values + size}};
}
int aclDestroyIntArray(const aclIntArray* array) {
  delete array;
  return 0;
}
}
