package ledger

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/install"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

func TestHashSurvivesStorage(t *testing.T) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme)
	for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf} {
		info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
		require.True(t, ok, mediaType)
		codec := codecs.CodecForVersions(info.Serializer, info.Serializer, v1alpha1.SchemeGroupVersion, rack.SchemeGroupVersion)
		m := odd(t)
		for _, record := range append(m.records, history(t).records...) {
			stored, err := runtime.Encode(codec, record)
			require.NoError(t, err)
			read, err := runtime.Decode(codec, stored)
			require.NoError(t, err)
			require.Equal(t, string(AppendCanonical(nil, record)), string(AppendCanonical(nil, read.(*rack.AuditRecord))), mediaType)
			assert.Equal(t, record.Hash, Hash(read.(*rack.AuditRecord)), mediaType)
		}
	}
}
