/* Prints size and offsets of the structures of pm.h. layout.rs compares them with Rust's. */
#include <pm.h>
#include <stdio.h>

#define SIZE(type) printf(#type " %zu\n", sizeof(type))
#define OFFSET(type, member) printf(#type "." #member " %zu\n", offsetof(type, member))

int main(void) {
    SIZE(pmContextConfig);
    OFFSET(pmContextConfig, type);
    OFFSET(pmContextConfig, number);
    OFFSET(pmContextConfig, nodes);
    OFFSET(pmContextConfig, mtu);
    OFFSET(pmContextConfig, size);
    OFFSET(pmContextConfig, option);
    SIZE(pmDeviceConfig);
    OFFSET(pmDeviceConfig, type);
    OFFSET(pmDeviceConfig, nodes);
    OFFSET(pmDeviceConfig, contexts);
    OFFSET(pmDeviceConfig, mtu);
    OFFSET(pmDeviceConfig, size);
    OFFSET(pmDeviceConfig, option);
    SIZE(pmMessageQueueStatus);
    OFFSET(pmMessageQueueStatus, receive);
    OFFSET(pmMessageQueueStatus, send);
    OFFSET(pmMessageQueueStatus, read);
    SIZE(pmRemoteStatus);
    OFFSET(pmRemoteStatus, started);
    OFFSET(pmRemoteStatus, completed);
    SIZE(pmMmapInfo);
    OFFSET(pmMmapInfo, addr);
    OFFSET(pmMmapInfo, len);
    OFFSET(pmMmapInfo, offset);
    OFFSET(pmMmapInfo, fd);
    OFFSET(pmMmapInfo, prot);
    SIZE(pmAddrHandle);
    return 0;
}
