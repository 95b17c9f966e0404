// csrc/ascend/host/acl.cpp beside the runtime's own headers: nothing here runs, it compiles or not.
#include <type_traits>

#include "acl.cpp"  // csrc/ascend/host
#include "acl/acl.h"

namespace asap::ascend {
namespace {

// Enumerations are passed as the numbers they are; their sign is the compiler's choice.
template <class Type>
constexpr bool is_number = std::is_integral_v<Type> || std::is_enum_v<Type>;

template <class Ours, class Theirs>
constexpr bool pointees_agree() {
  using A = std::remove_const_t<Ours>;
  using B = std::remove_const_t<Theirs>;
  if (std::is_const_v<Ours> && !std::is_const_v<Theirs>) return false;  // they may write
  if (std::is_void_v<A> || std::is_void_v<B>) return true;
  if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    return pointees_agree<std::remove_pointer_t<A>, std::remove_pointer_t<B>>();
  }
  return std::is_same_v<A, B>;
}

template <class Ours, class Theirs>
constexpr bool are_passed_alike() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    return pointees_agree<std::remove_pointer_t<Ours>, std::remove_pointer_t<Theirs>>();
  } else if constexpr (std::is_integral_v<Ours> && std::is_integral_v<Theirs>) {
    return std::is_same_v<Ours, Theirs>;
  } else {
    return is_number<Ours> && is_number<Theirs> && sizeof(Ours) == sizeof(Theirs);
  }
}

template <class Ours, class Theirs>
struct SameCall : std::false_type {};

template <class Result, class... Ours, class... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameCall<Result (*)(Ours...), Result (*)(Theirs...)>
    : std::bool_constant<(are_passed_alike<Ours, Theirs>() && ...)> {};

#define ASAP_SAME(name, ...)                                                   \
  static_assert(SameCall<decltype(Functions::name), decltype(&::name)>::value, \
                #name " is declared otherwise by acl/acl.h");
ASAP_ACL_FUNCTIONS(ASAP_SAME)
#undef ASAP_SAME
#define ASAP_SAME(name, ...)                                                      \
  static_assert(SameCall<decltype(MappedMemory::name), decltype(&::name)>::value, \
                #name " is declared otherwise by acl/acl.h");
ASAP_ACL_MAPPED_MEMORY(ASAP_SAME)
#undef ASAP_SAME

static_assert(kRepeatedInit == ACL_ERROR_REPEAT_INITIALIZE);
static_assert(kHugePagesFirst == ACL_MEM_MALLOC_HUGE_FIRST);
static_assert(kAnyProcess == ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION);
static_assert(kAnyProcess == ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION);
static_assert(kEnablePeerAccess == ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS);
static_assert(kCubeCores == ACL_DEV_ATTR_CUBE_CORE_NUM);
static_assert(kVectorCores == ACL_DEV_ATTR_VECTOR_CORE_NUM);
static_assert(kFabric == ACL_MEM_SHARE_HANDLE_TYPE_FABRIC);
static_assert(kHandleBytes == sizeof(aclrtMemFabricHandle));
static_assert(static_cast<int>(Copy::host_to_device) == ACL_MEMCPY_HOST_TO_DEVICE);
static_assert(static_cast<int>(Copy::device_to_host) == ACL_MEMCPY_DEVICE_TO_HOST);
static_assert(static_cast<int>(Copy::on_device) == ACL_MEMCPY_DEVICE_TO_DEVICE);

constexpr PhysicalProperties kOurs{.device = 5};
static_assert(kOurs.handle_type == ACL_MEM_HANDLE_TYPE_NONE);
static_assert(kOurs.allocation_type == ACL_MEM_ALLOCATION_TYPE_PINNED);
static_assert(kOurs.attribute == ACL_HBM_MEM_HUGE);
static_assert(kOurs.location_type == ACL_MEM_LOCATION_TYPE_DEVICE);
static_assert(sizeof(kOurs) == sizeof(aclrtPhysicalMemProp));
static_assert(offsetof(PhysicalProperties, attribute) == offsetof(aclrtPhysicalMemProp, memAttr));
static_assert(offsetof(PhysicalProperties, device) ==
              offsetof(aclrtPhysicalMemProp, location) + offsetof(aclrtMemLocation, id));
static_assert(offsetof(PhysicalProperties, location_type) ==
              offsetof(aclrtPhysicalMemProp, location) + offsetof(aclrtMemLocation, type));
static_assert(offsetof(PhysicalProperties, reserved) == offsetof(aclrtPhysicalMemProp, reserve));

}  // namespace
}  // namespace asap::ascend
