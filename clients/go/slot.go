package rlock

import (
	"strconv"
	"strings"
)

const slots = 16384

// slotOf returns the hash slot of a key in Redis Cluster.
func slotOf(key string) uint16 {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, found := strings.Cut(rest, "}"); found && tag != "" {
			key = tag
		}
	}
	return crc16(key) % slots
}

// crc16 is CRC-16/XMODEM.
func crc16(text string) (crc uint16) {
	for i := range len(text) {
		crc ^= uint16(text[i]) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
	}
	return crc
}

// tagOf returns a hash tag of the slot. Tags of keys would make a channel for each key instead.
func tagOf(slot uint16) string {
	for n := 0; ; n++ {
		if tag := strconv.Itoa(n); crc16(tag)%slots == slot {
			return tag
		}
	}
}
