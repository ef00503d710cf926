package registry

import (
	"testing"

	"github.com/stretchr/testify/require"

	"k8s.io/apimachinery/pkg/runtime"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apiserver"
)

// storageSerializer reads and writes objects as stored in etcd.
func storageSerializer(t testing.TB) runtime.Serializer {
	info, ok := runtime.SerializerInfoForMediaType(apiserver.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	require.True(t, ok)
	return info.Serializer
}

func decode(t testing.TB, data []byte, into runtime.Object) {
	t.Helper()
	require.NoError(t, runtime.DecodeInto(storageSerializer(t), data, into))
}

func encode(t testing.TB, obj runtime.Object) []byte {
	t.Helper()
	data, err := runtime.Encode(apiserver.Codecs.EncoderForVersion(storageSerializer(t), rackv1alpha1.SchemeGroupVersion), obj)
	require.NoError(t, err)
	return data
}
