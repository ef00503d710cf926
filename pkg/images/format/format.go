// Package format describes the layout of macOS images in OCI registries: MacRack's own format and
// that of tart. See docs/images.md.
package format

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Media types and annotations of MacRack's format. Sizes and offsets are in bytes, in decimal.
const (
	ArtifactType    = "application/vnd.macrack.image.v1"
	MediaTypeConfig = "application/vnd.macrack.image.config.v1+json"
	// MediaTypeDisk is a chunk of the disk. Chunks do not overlap; ranges that no chunk covers read
	// as zeros.
	MediaTypeDisk = "application/vnd.macrack.image.disk.v1+zstd"
	// MediaTypeAux is the auxiliary storage (NVRAM) of the virtual machine.
	MediaTypeAux = "application/vnd.macrack.image.aux.v1+zstd"

	// AnnotationOffset is the offset of a chunk on the disk.
	AnnotationOffset = "io.macrack.image.offset"
	// AnnotationSize is the decompressed size of a chunk, or of the auxiliary storage.
	AnnotationSize = "io.macrack.image.size"
	// AnnotationData is the size of the data of a chunk on disk; the rest is zeros.
	AnnotationData = "io.macrack.image.data"
)

// Media types and annotations of tart's format.
const (
	tartConfig = "application/vnd.cirruslabs.tart.config.v1"
	tartDiskV1 = "application/vnd.cirruslabs.tart.disk.v1"
	tartDisk   = "application/vnd.cirruslabs.tart.disk.v2"
	tartNVRAM  = "application/vnd.cirruslabs.tart.nvram.v1"

	tartUncompressedSize   = "org.cirruslabs.tart.uncompressed-size"
	tartUncompressedDigest = "org.cirruslabs.tart.uncompressed-content-digest"
	tartDiskSize           = "org.cirruslabs.tart.uncompressed-disk-size"
)

const (
	// BlockSize is the granularity at which zeros are detected, in bytes.
	BlockSize = 64 << 10
	// MaxManifest is the size limit of a manifest, in bytes.
	MaxManifest = 4 << 20
	// MaxConfig is the size limit of a config, in bytes.
	MaxConfig = 1 << 20

	// MaxAux is the size limit of the auxiliary storage, in bytes.
	MaxAux = 1 << 30

	maxDisk = 1 << 50
)

// Codec is the compression of a blob.
type Codec int

const (
	// Raw blobs are not compressed.
	Raw Codec = iota
	// Zstd blobs are zstd frames.
	Zstd
	// AppleLZ4 blobs are in the LZ4 format of Apple's Compression framework.
	AppleLZ4
)

// Chunk is a range of a file that is stored in one blob.
type Chunk struct {
	Blob  ocispec.Descriptor
	Codec Codec
	// Offset and Size describe the range of the file, in bytes.
	Offset, Size int64
	// Data is the upper bound of the storage that the chunk occupies, in bytes: zeros occupy none.
	Data int64
	// Content is the digest of the decompressed chunk; empty if unknown.
	Content digest.Digest
}

// Layout describes the parts of an image.
type Layout struct {
	// DiskSize is the size of the disk in bytes.
	DiskSize int64
	Disk     []Chunk
	// Aux is the auxiliary storage; nil if the image has none.
	Aux    *Chunk
	Config ocispec.Descriptor
	// CPUMin and MemoryMin are the least that the image boots with, in cores and bytes; 0 if
	// unknown. Complete sets them.
	CPUMin, MemoryMin int64
	// MachineID is the machine identifier of the virtual machine that the image was made from, in
	// base64; empty if unknown. Complete sets it.
	MachineID string

	tart bool
}

// Config is the config of an image in MacRack's format.
type Config struct {
	// DiskSize is the size of the disk in bytes.
	DiskSize int64 `json:"diskSize"`
	// HardwareModel is that of Virtualization.framework, in base64.
	HardwareModel string `json:"hardwareModel,omitempty"`
	// MachineID is the machine identifier of the virtual machine, in base64.
	MachineID string `json:"machineIdentifier,omitempty"`
}

// tartConfigFile is the relevant part of tart's config.
type tartConfigFile struct {
	OS            string `json:"os"`
	Arch          string `json:"arch"`
	HardwareModel string `json:"hardwareModel"`
	ECID          string `json:"ecid"` // the machine identifier
	DiskFormat    string `json:"diskFormat"`
	CPUCountMin   int64  `json:"cpuCountMin"`
	MemorySizeMin int64  `json:"memorySizeMin"`
}

// Parse reads a manifest. In MacRack's format, Complete adds the size of the disk from the config.
func Parse(manifest []byte) (*Layout, error) {
	var m ocispec.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		return nil, fmt.Errorf("the manifest is not JSON: %w", err)
	}
	if m.MediaType != "" && m.MediaType != ocispec.MediaTypeImageManifest {
		return nil, fmt.Errorf("the digest is that of a %q, not of an image manifest (%s); pin the manifest itself", m.MediaType, ocispec.MediaTypeImageManifest)
	}
	var l *Layout
	var err error
	switch {
	case m.Config.MediaType == MediaTypeConfig:
		l, err = parseOurs(&m)
	case len(m.Layers) > 0 && strings.HasPrefix(m.Layers[0].MediaType, "application/vnd.cirruslabs.tart."):
		l, err = parseTart(&m)
	default:
		return nil, fmt.Errorf("unknown image format with config %q; use MacRack's (config %s) or tart's (layers %s)", m.Config.MediaType, MediaTypeConfig, tartDisk)
	}
	if err != nil {
		return nil, err
	}
	return l, l.checkBlobs()
}

func parseOurs(m *ocispec.Manifest) (*Layout, error) {
	l := &Layout{Config: m.Config}
	end := int64(0)
	for i, layer := range m.Layers {
		chunk := Chunk{Blob: layer, Codec: Zstd}
		var err error
		if chunk.Size, err = number(layer, AnnotationSize, 1, maxDisk); err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		switch layer.MediaType {
		case MediaTypeDisk:
			if chunk.Offset, err = number(layer, AnnotationOffset, end, maxDisk-chunk.Size); err == nil {
				chunk.Data, err = number(layer, AnnotationData, 0, chunk.Size)
			}
			if err != nil {
				return nil, fmt.Errorf("layer %d: %w", i, err)
			}
			if chunk.Offset%BlockSize != 0 {
				return nil, fmt.Errorf("layer %d: offset %d of the chunk is not a multiple of %d", i, chunk.Offset, BlockSize)
			}
			end = chunk.Offset + chunk.Size
			l.Disk = append(l.Disk, chunk)
		case MediaTypeAux:
			chunk.Data = chunk.Size
			if err := l.setAux(chunk); err != nil {
				return nil, fmt.Errorf("layer %d: %w", i, err)
			}
		default:
			return nil, fmt.Errorf("layer %d has the unknown type %q", i, layer.MediaType)
		}
	}
	return l, nil
}

func parseTart(m *ocispec.Manifest) (*Layout, error) {
	l := &Layout{tart: true}
	for i, layer := range m.Layers {
		var err error
		switch layer.MediaType {
		case tartConfig:
			if l.Config.Digest != "" {
				return nil, fmt.Errorf("layer %d is a second %s", i, tartConfig)
			}
			l.Config = layer
		case tartDisk:
			chunk := Chunk{Blob: layer, Codec: AppleLZ4, Offset: l.DiskSize}
			if chunk.Size, err = number(layer, tartUncompressedSize, 1, maxDisk-l.DiskSize); err != nil {
				return nil, fmt.Errorf("layer %d: %w", i, err)
			}
			chunk.Data, chunk.Content = chunk.Size, digest.Digest(layer.Annotations[tartUncompressedDigest])
			if chunk.Content != "" && (chunk.Content.Validate() != nil || chunk.Content.Algorithm() != digest.SHA256) {
				return nil, fmt.Errorf("layer %d: annotation %s is %q, not a sha256 digest", i, tartUncompressedDigest, chunk.Content)
			}
			l.DiskSize += chunk.Size
			l.Disk = append(l.Disk, chunk)
		case tartNVRAM:
			if err := l.setAux(Chunk{Blob: layer, Codec: Raw, Size: layer.Size, Data: layer.Size}); err != nil {
				return nil, fmt.Errorf("layer %d: %w", i, err)
			}
		case tartDiskV1:
			return nil, fmt.Errorf("layer %d has the obsolete type %s; push the image again with a newer tart", i, tartDiskV1)
		default:
			return nil, fmt.Errorf("layer %d has the unknown type %q", i, layer.MediaType)
		}
	}
	switch size, given := m.Annotations[tartDiskSize]; {
	case l.Config.Digest == "":
		return nil, fmt.Errorf("there is no layer of type %s", tartConfig)
	case l.Aux == nil:
		return nil, fmt.Errorf("there is no layer of type %s", tartNVRAM)
	case len(l.Disk) == 0:
		return nil, fmt.Errorf("there is no layer of type %s", tartDisk)
	case given && size != strconv.FormatInt(l.DiskSize, 10):
		return nil, fmt.Errorf("the layers of the disk have %d bytes in total, annotation %s is %q", l.DiskSize, tartDiskSize, size)
	}
	return l, nil
}

func (l *Layout) setAux(chunk Chunk) error {
	switch {
	case l.Aux != nil:
		return fmt.Errorf("there is a second %q", chunk.Blob.MediaType)
	case chunk.Size < 1 || chunk.Size > MaxAux:
		return fmt.Errorf("the auxiliary storage has %d bytes, must have 1 to %d", chunk.Size, MaxAux)
	}
	l.Aux = &chunk
	return nil
}

func (l *Layout) checkBlobs() error {
	check := func(d ocispec.Descriptor, most int64) error {
		if d.Digest.Validate() != nil || d.Digest.Algorithm() != digest.SHA256 {
			return fmt.Errorf("blob of type %q has the digest %q; only sha256 with 64 lowercase hexadecimal digits is supported", d.MediaType, d.Digest)
		}
		if d.Size < 0 || d.Size > most {
			return fmt.Errorf("blob %s has %d bytes, and the limit is %d", d.Digest, d.Size, most)
		}
		return nil
	}
	errs := []error{check(l.Config, MaxConfig)}
	for _, chunk := range l.Chunks() {
		// Codecs make incompressible data only slightly longer.
		errs = append(errs, check(chunk.Blob, chunk.Size+chunk.Size/64+1<<20))
	}
	return errors.Join(errs...)
}

// Complete reads the config and returns the image's hardware model, in base64; empty if unknown.
func (l *Layout) Complete(config []byte) (hardwareModel string, err error) {
	if l.tart {
		var c tartConfigFile
		if err := json.Unmarshal(config, &c); err != nil {
			return "", fmt.Errorf("tart's config: %w", err)
		}
		switch {
		case c.OS != "" && c.OS != "darwin":
			return "", fmt.Errorf("the image is of %q, not of macOS", c.OS)
		case c.Arch != "" && c.Arch != "arm64":
			return "", fmt.Errorf("the image is for %q, not for arm64", c.Arch)
		case c.DiskFormat != "" && c.DiskFormat != "raw":
			return "", fmt.Errorf("the disk is in format %q: only raw disks can be read", c.DiskFormat)
		}
		l.CPUMin, l.MemoryMin = max(0, c.CPUCountMin), max(0, c.MemorySizeMin)
		l.MachineID = c.ECID
		return c.HardwareModel, errors.Join(checkBase64("hardware model", c.HardwareModel), checkBase64("machine identifier", c.ECID))
	}
	var c Config
	if err := json.Unmarshal(config, &c); err != nil {
		return "", fmt.Errorf("the config: %w", err)
	}
	if c.DiskSize < 1 || c.DiskSize > maxDisk {
		return "", fmt.Errorf("the disk size in the config is %d bytes", c.DiskSize)
	}
	if n := len(l.Disk); n > 0 && l.Disk[n-1].Offset+l.Disk[n-1].Size > c.DiskSize {
		return "", fmt.Errorf("the last chunk ends at %d, the disk at %d", l.Disk[n-1].Offset+l.Disk[n-1].Size, c.DiskSize)
	}
	l.DiskSize, l.MachineID = c.DiskSize, c.MachineID
	return c.HardwareModel, errors.Join(checkBase64("hardware model", c.HardwareModel), checkBase64("machine identifier", c.MachineID))
}

func checkBase64(what, text string) error {
	if _, err := base64.StdEncoding.DecodeString(text); err != nil {
		return fmt.Errorf("the %s is not base64: %w", what, err)
	}
	return nil
}

// Chunks returns the chunks of the disk, and the auxiliary storage, if there is one, last.
func (l *Layout) Chunks() []Chunk {
	if l.Aux == nil {
		return l.Disk
	}
	return append(l.Disk[:len(l.Disk):len(l.Disk)], *l.Aux)
}

// number reads an annotation.
func number(d ocispec.Descriptor, annotation string, low, high int64) (int64, error) {
	text, found := d.Annotations[annotation]
	if !found {
		return 0, fmt.Errorf("annotation %s is missing", annotation)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("annotation %s is %q, must be a number from %d to %d", annotation, text, low, high)
	}
	return n, nil
}

// Manifest returns the manifest of an image in MacRack's format. It keeps the descriptors of the
// chunks, except for their annotations.
func Manifest(config ocispec.Descriptor, disk []Chunk, aux *Chunk) ([]byte, error) {
	m := ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: ArtifactType,
		Config:       config,
		Layers:       []ocispec.Descriptor{},
	}
	decimal := func(n int64) string { return strconv.FormatInt(n, 10) }
	for _, chunk := range disk {
		layer := chunk.Blob
		layer.MediaType = MediaTypeDisk
		layer.Annotations = map[string]string{
			AnnotationOffset: decimal(chunk.Offset), AnnotationSize: decimal(chunk.Size), AnnotationData: decimal(chunk.Data),
		}
		m.Layers = append(m.Layers, layer)
	}
	if aux != nil {
		layer := aux.Blob
		layer.MediaType = MediaTypeAux
		layer.Annotations = map[string]string{AnnotationSize: decimal(aux.Size)}
		m.Layers = append(m.Layers, layer)
	}
	data, err := json.Marshal(m)
	if err == nil && len(data) > MaxManifest {
		err = fmt.Errorf("the manifest has %d bytes, and registries accept %d; use larger chunks", len(data), MaxManifest)
	}
	return data, err
}
