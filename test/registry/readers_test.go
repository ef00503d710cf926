package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"path"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/randfill"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apiserver"
	"macrack.io/macrack/pkg/generated/clientset/versioned/scheme"
	"macrack.io/macrack/pkg/registry/values"
)

var hostileTexts = []string{"", "a", "a\x00b", "\xff", "\xed\xa0\x80", "\u202e", "\u2028", "-1", "1e1000000000", "null", "{", "%!s(MISSING)", "<script>", "\U0010FFFF"}

// kinds are the stored kinds.
var kinds = []struct {
	version   schema.GroupVersion
	resource  string
	namespace string
	newObject func() runtime.Object
	newList   func() runtime.Object
}{
	{rackv1alpha1.SchemeGroupVersion, "macnodes", "", func() runtime.Object { return &rackv1alpha1.MacNode{} }, func() runtime.Object { return &rackv1alpha1.MacNodeList{} }},
	{rackv1alpha1.SchemeGroupVersion, "macnodeclasses", "", func() runtime.Object { return &rackv1alpha1.MacNodeClass{} }, func() runtime.Object { return &rackv1alpha1.MacNodeClassList{} }},
	{rackv1alpha1.SchemeGroupVersion, "macnodeleases", "acme", func() runtime.Object { return &rackv1alpha1.MacNodeLease{} }, func() runtime.Object { return &rackv1alpha1.MacNodeLeaseList{} }},
	{rackv1alpha1.SchemeGroupVersion, "auditrecords", "acme", func() runtime.Object { return &rackv1alpha1.AuditRecord{} }, func() runtime.Object { return &rackv1alpha1.AuditRecordList{} }},
	{instancev1alpha1.SchemeGroupVersion, "macosinstances", "acme", func() runtime.Object { return &instancev1alpha1.MacOSInstance{} }, func() runtime.Object { return &instancev1alpha1.MacOSInstanceList{} }},
	{instancev1alpha1.SchemeGroupVersion, "instanceclasses", "", func() runtime.Object { return &instancev1alpha1.InstanceClass{} }, func() runtime.Object { return &instancev1alpha1.InstanceClassList{} }},
	{imagev1alpha1.SchemeGroupVersion, "macosimages", "", func() runtime.Object { return &imagev1alpha1.MacOSImage{} }, func() runtime.Object { return &imagev1alpha1.MacOSImageList{} }},
	{configv1alpha1.SchemeGroupVersion, "rackconfigs", "", func() runtime.Object { return &configv1alpha1.RackConfig{} }, func() runtime.Object { return &configv1alpha1.RackConfigList{} }},
}

// hostile returns a filler of objects with values that readers may not be able to decode.
func hostile(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3).MaxDepth(12).Funcs(
		func(*metav1.TypeMeta, randfill.Continue) {},
		func(s *string, c randfill.Continue) {
			if *s = c.String(8); c.Bool() {
				*s = hostileTexts[c.Intn(len(hostileTexts))]
			}
		},
		func(at *metav1.Time, c randfill.Continue) {
			*at = farTime(c.Int63n(1 << 33))
			if c.Bool() {
				*at = farTime(farTimes[c.Intn(len(farTimes))])
			}
		},
		func(fields *metav1.FieldsV1, c randfill.Continue) {
			fields.SetRawString([]string{"{}", "{", `{"x":{}}`, "", `{"f:a":{}}`, "null", "{\"f:\xff\":{}}"}[c.Intn(7)])
		},
	)
}

// Random objects in etcd, of all kinds and with values that no writer may store, can be read in all
// encodings: as JSON, YAML, protocol buffers and tables, by typed clients, and as CBOR.
func TestRandomObjectsAreReadByAll(t *testing.T) {
	const each = 40
	f := newFleet(t, 1)
	serializer := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	random := rand.New(rand.NewSource(1))
	for _, kind := range kinds {
		for n := range each {
			obj := kind.newObject()
			hostile(random.Int63()).Fill(obj)
			accessor, err := meta.Accessor(obj)
			require.NoError(t, err)
			accessor.SetName(fmt.Sprintf("random-%d", n))
			accessor.SetNamespace(kind.namespace)
			gvks, _, err := scheme.Scheme.ObjectKinds(obj)
			require.NoError(t, err)
			obj.GetObjectKind().SetGroupVersionKind(gvks[0])
			var data bytes.Buffer
			require.NoError(t, serializer.Encode(obj, &data))
			key := path.Join("/registry", kind.version.Group, kind.resource, kind.namespace, accessor.GetName())
			_, err = f.etcd.Client.Put(t.Context(), key, data.String())
			require.NoError(t, err)
		}
	}
	for _, kind := range kinds {
		url := f.servers[0].URL("/apis/%s/%s", kind.version, kind.resource)
		for _, accept := range []string{"application/json", "application/yaml", runtime.ContentTypeProtobuf,
			"application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"} {
			code, body := f.getAs(t, url, accept)
			assert.Equal(t, http.StatusOK, code, "%s as %s: %.1000s", kind.resource, accept, body)
		}
		for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
			config := rest.CopyConfig(f.servers[0].Config("admin", "system:masters"))
			config.ContentType, config.AcceptContentTypes = contentType, contentType
			config.GroupVersion, config.APIPath, config.NegotiatedSerializer = &kind.version, "/apis", scheme.Codecs.WithoutConversion()
			client, err := rest.RESTClientFor(config)
			require.NoError(t, err)
			list := kind.newList()
			if assert.NoError(t, client.Get().Resource(kind.resource).Do(t.Context()).Into(list), "%s as %s", kind.resource, contentType) {
				assert.GreaterOrEqual(t, meta.LenList(list), each, "%s as %s", kind.resource, contentType)
				assert.NoError(t, cbor.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(list, io.Discard), "%s as CBOR", kind.resource)
			}
		}
	}
}

// FuzzStoredIsRead stores random objects through the codec of the storage. Typed clients must be
// able to read each stored one, as JSON, YAML and protobuf.
func FuzzStoredIsRead(f *testing.F) {
	for n := range int64(200) {
		f.Add(n, byte(n))
	}
	f.Fuzz(func(t *testing.T, seed int64, which byte) {
		kind := kinds[int(which)%len(kinds)]
		filled := kind.newObject()
		hostile(seed).Fill(filled)
		if seed%2 == 0 {
			values.Repair(filled) // so that half of the objects are stored
		}
		accessor, err := meta.Accessor(filled)
		require.NoError(t, err)
		accessor.SetName("random")
		accessor.SetNamespace(kind.namespace)
		gvks, _, err := scheme.Scheme.ObjectKinds(filled)
		require.NoError(t, err)
		filled.GetObjectKind().SetGroupVersionKind(gvks[0])

		var sent bytes.Buffer // the client's encoding
		require.NoError(t, protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(filled, &sent))
		received, err := runtime.Decode(apiserver.Codecs.UniversalDecoder(), sent.Bytes())
		if err != nil {
			return // refused
		}
		codec := apiserver.Codecs.CodecForVersions(storageSerializer(t).(runtime.Encoder), apiserver.Codecs.UniversalDeserializer(), kind.version, runtime.InternalGroupVersioner)
		stored := values.NewCodec(kind.version.WithResource(kind.resource).GroupResource(), codec)
		data, err := runtime.Encode(stored, received)
		if err != nil {
			require.True(t, apierrors.IsInvalid(err), "%v", err)
			return
		}
		obj, err := runtime.Decode(stored, data)
		require.NoError(t, err)
		var first runtime.Object
		for _, info := range apiserver.Codecs.SupportedMediaTypes() {
			if info.MediaType == runtime.ContentTypeCBOR {
				continue
			}
			answer, err := runtime.Encode(apiserver.Codecs.EncoderForVersion(info.Serializer, kind.version), obj)
			require.NoError(t, err, info.MediaType)
			read := kind.newObject()
			require.NoError(t, runtime.DecodeInto(scheme.Codecs.UniversalDeserializer(), answer, read), "%s: %.2000s", info.MediaType, answer)
			require.Empty(t, values.Check(read), info.MediaType)
			if info.MediaType != runtime.ContentTypeProtobuf { // protobuf and texts distinguish nil and empty differently
				if first == nil {
					first = read
				}
				require.Equal(t, asJSON(t, first), asJSON(t, read), info.MediaType)
			}
			require.NoError(t, cbor.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(read, io.Discard), info.MediaType)
		}
	})
}

func asJSON(t *testing.T, obj runtime.Object) string {
	t.Helper()
	data, err := json.Marshal(obj)
	require.NoError(t, err)
	return string(data)
}

// getAs returns the status code and the body of the first server's answer to an administrator in
// one media type.
func (f *fleet) getAs(t *testing.T, url, accept string) (code int, body []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Header.Set("Accept", accept)
	resp, err := f.servers[0].HTTPClient(t, "admin", "system:masters").Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, body
}
