package auditrecord

import (
	"math/rand"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"macrack.io/macrack/pkg/apis/rack"
	rackfuzzer "macrack.io/macrack/pkg/apis/rack/fuzzer"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/registry/values"
)

// The decoder reads what the codec reads, record after record.
func TestDecoderIsTheCodec(t *testing.T) {
	codecs := serializer.NewCodecFactory(newScheme())
	codec := func(mediaType string) runtime.Codec {
		info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
		require.True(t, ok)
		stored := codecs.CodecForVersions(info.Serializer, info.Serializer, v1alpha1.SchemeGroupVersion, runtime.InternalGroupVersioner)
		return values.NewCodec(Resource, stored)
	}
	protobuf := codec(runtime.ContentTypeProtobuf)
	fill := fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, rackfuzzer.Funcs), rand.NewSource(1), codecs)
	var decoder Decoder
	var kept []*rack.AuditRecord
	var want []*rack.AuditRecord
	for range 200 {
		record := &rack.AuditRecord{}
		fill.Fill(record)
		data, err := runtime.Encode(protobuf, record)
		require.NoError(t, err)
		theirs, ours := &rack.AuditRecord{}, &rack.AuditRecord{}
		require.NoError(t, runtime.DecodeInto(protobuf, data, theirs))
		require.True(t, decoder.Decode(data, ours))
		theirs.TypeMeta, ours.TypeMeta = rack.AuditRecord{}.TypeMeta, rack.AuditRecord{}.TypeMeta
		kept, want = append(kept, ours), append(want, theirs)
		clear(data)
	}
	assert.Equal(t, want, kept, "neither the next record nor the next use of the data changes one")

	poisoned := &v1alpha1.AuditRecord{Hash: "a\xff"}
	poisoned.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("AuditRecord"))
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	data, err := runtime.Encode(info.Serializer, poisoned)
	require.NoError(t, err)
	repaired := &rack.AuditRecord{}
	require.True(t, decoder.Decode(data, repaired))
	assert.Equal(t, "a\uFFFD", repaired.Hash)

	record := &rack.AuditRecord{}
	asJSON, err := runtime.Encode(codec(runtime.ContentTypeJSON), want[0])
	require.NoError(t, err)
	other, err := runtime.Encode(protobuf, &rack.MacNode{})
	require.NoError(t, err)
	good, err := runtime.Encode(protobuf, want[0])
	require.NoError(t, err)
	for _, data := range [][]byte{nil, asJSON, other, good[:len(good)/2], []byte("k8s\x00garbage")} {
		assert.False(t, decoder.Decode(data, record), "%q", data)
	}
	assert.Equal(t, &rack.AuditRecord{}, record)
}
